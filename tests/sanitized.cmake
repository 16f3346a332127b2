# What runs under sanitizers, and what runs first because it takes longest.

# Under AddressSanitizer and UndefinedBehaviorSanitizer runs what handles bytes from outside or memory with several owners: that is
# every unit test but those of these sources, whose arithmetic takes minutes under sanitizers.
set(sn_minutes_under_sanitizers
  # test_cpu_conformance runs the same kernels over awkward shapes
  bits train tiles golden cpu_device cpu_attention
  # the emulations' kernels are compiled without sanitizers; test_cuda_device, test_cuda_records, test_xpu and test_emulated_memory run
  # their hosts' side
  cuda_conformance xpu_conformance emulated_devices emulated_head emulated_offload emulated_parts emulated_recurrent emulated_tensors
  xpu_decode
  # its bytes are one well-formed file; test_gguf, test_tokenizer and the fuzz targets read others, test_cli and the scripts below run the
  # same program
  real_model)

# The programs themselves run under sanitizers in these: all messages, all kinds of failure, the files.
set(sn_with_asan chat failover chain flood protocol private_swarm adapter session_file audit status serve)
set(sn_with_tsan chain failover adapter serve_at_once expert_group)
list(TRANSFORM sn_with_asan REPLACE "^.+$" "system/test_\\0.sh")
list(TRANSFORM sn_with_tsan REPLACE "^.+$" "system/test_\\0.sh")

set(sn_longest emulated_devices emulated_offload emulated_tensors cuda_conformance bits cuda_device xpu_conformance failover)
