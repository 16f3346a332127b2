// The symbols of LaTeX that math.js draws, by their names without the backslash.
const pairs = (text) => {
  const words = text.trim().split(/\s+/);
  return new Map(words.flatMap((name, i) => (i % 2 ? [] : [[name, words[i + 1]]])));
};
const names = (text) => new Set(text.trim().split(/\s+/));

export const GREEK = pairs(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ
  nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω
  Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω`);

// What stands like a letter, without space around it.
export const ORDINARY = pairs(`infty ∞ partial ∂ nabla ∇ ell ℓ hbar ℏ hslash ℏ imath ı jmath ȷ Re ℜ Im ℑ aleph ℵ beth ℶ wp ℘ emptyset ∅
  varnothing ∅ forall ∀ exists ∃ nexists ∄ top ⊤ bot ⊥ angle ∠ measuredangle ∡ triangle △ square □ Box □ blacksquare ■ qed ∎ Diamond ◊
  lozenge ◊ clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ bigstar ★ checkmark ✓ degree ° S § P ¶ pounds £ copyright © prime ′
  backprime ‵ dots … ldots … dotsc … dotso … cdots ⋯ dotsb ⋯ dotsm ⋯ dotsi ⋯ vdots ⋮ ddots ⋱ lnot ¬ neg ¬ flat ♭ sharp ♯ natural ♮
  complement ∁ mho ℧ eth ð AA Å surd √ lbrace { rbrace } % % # # & & $ $ _ _`);

export const OPERATORS = pairs(`pm ± mp ∓ times × div ÷ cdot ⋅ cdotp ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ cap ∩ cup ∪ sqcap ⊓ sqcup ⊔ vee ∨ wedge ∧
  lor ∨ land ∧ setminus ∖ smallsetminus ∖ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ uplus ⊎ amalg ⨿ ltimes ⋉ rtimes ⋊ bowtie ⋈ dagger †
  dag † ddagger ‡ ddag ‡ wr ≀ diamond ⋄ bigtriangleup △ bigtriangledown ▽ triangleleft ◁ triangleright ▷ boxplus ⊞ boxtimes ⊠ veebar ⊻
  leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ lt < gt > ll ≪ gg ≫ equiv ≡ sim ∼ simeq ≃ approx ≈ cong ≅ propto ∝ varpropto ∝ asymp ≍ doteq ≐
  triangleq ≜ coloneqq ≔ coloneq ≔ eqqcolon ≕ in ∈ notin ∉ ni ∋ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋
  nsubseteq ⊈ nsupseteq ⊉ sqsubseteq ⊑ sqsupseteq ⊒ mid ∣ nmid ∤ parallel ∥ nparallel ∦ perp ⟂ vdash ⊢ nvdash ⊬ dashv ⊣ models ⊨
  vDash ⊨ Vdash ⊩ prec ≺ succ ≻ preceq ⪯ succeq ⪰ leqslant ⩽ geqslant ⩾ leqq ≦ geqq ≧ lesssim ≲ gtrsim ≳ nleq ≰ ngeq ≱ nless ≮
  ngtr ≯ ncong ≇ nsim ≁ approxeq ≊ smile ⌣ frown ⌢ trianglelefteq ⊴ trianglerighteq ⊵ therefore ∴ because ∵ colon : to → rightarrow →
  leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ impliedby ⟸ iff ⟺ longrightarrow ⟶
  longleftarrow ⟵ longleftrightarrow ⟷ Longrightarrow ⟹ Longleftarrow ⟸ Longleftrightarrow ⟺ mapsto ↦ longmapsto ⟼ hookrightarrow ↪
  hookleftarrow ↩ uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ Updownarrow ⇕ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖
  rightharpoonup ⇀ rightharpoondown ⇁ leftharpoonup ↼ leftharpoondown ↽ rightleftharpoons ⇌ leftrightharpoons ⇋ rightrightarrows ⇉
  rightleftarrows ⇄ rightsquigarrow ⇝ leadsto ⇝ nrightarrow ↛ nleftarrow ↚ nRightarrow ⇏ nLeftarrow ⇍ nleftrightarrow ↮ nLeftrightarrow ⇎
  twoheadrightarrow ↠ rightarrowtail ↣ circlearrowleft ↺ circlearrowright ↻ upharpoonright ↾ restriction ↾ multimap ⊸ bmod mod`);

export const LARGE = pairs(`sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigvee ⋁ bigwedge ⋀ bigoplus ⨁ bigotimes ⨂ bigodot ⨀ biguplus ⨄ bigsqcup ⨆`);
export const INTEGRALS = pairs(`int ∫ iint ∬ iiint ∭ oint ∮ oiint ∯ smallint ∫`);

export const FUNCTIONS = names(`sin cos tan cot sec csc sinh cosh tanh coth sech csch arcsin arccos arctan arccot exp log ln lg deg dim ker hom arg
  sgn tr Tr rank diag erf`);
export const LIMITS = names(`lim limsup liminf max min sup inf det gcd lcm Pr argmax argmin injlim projlim`);

// What may stand behind \left, \right, \middle and \big. Names count with and without the backslash of { and }.
export const DELIMITERS = pairs(`( ( ) ) [ [ ] ] | | / / < ⟨ > ⟩ \\{ { \\} } \\| ‖ \\lbrace { \\rbrace } \\lbrack [ \\rbrack ] \\langle ⟨ \\rangle ⟩
  \\lfloor ⌊ \\rfloor ⌋ \\lceil ⌈ \\rceil ⌉ \\lvert | \\rvert | \\vert | \\lVert ‖ \\rVert ‖ \\Vert ‖ \\lgroup ⟮ \\rgroup ⟯ \\ulcorner ⌜ \\urcorner ⌝
  \\backslash \\ \\uparrow ↑ \\downarrow ↓ \\updownarrow ↕ \\Uparrow ⇑ \\Downarrow ⇓ \\Updownarrow ⇕`);

// Over (or under) what follows: the sign, and whether it becomes as wide as that.
export const ACCENTS = pairs(`hat ^ check ˇ tilde ~ acute ´ grave \` dot ˙ ddot ¨ dddot ⃛ breve ˘ bar ¯ vec → mathring ˚`);
export const WIDE_OVER = pairs(`widehat ^ widetilde ~ overrightarrow → overleftarrow ← overleftrightarrow ↔ overbrace ⏞`);
export const WIDE_UNDER = pairs(`underrightarrow → underleftarrow ← underbrace ⏟`);
export const LONG_ARROWS = pairs(`xrightarrow → xleftarrow ← xleftrightarrow ↔ xRightarrow ⇒ xLeftarrow ⇐ xLeftrightarrow ⇔ xmapsto ↦ xhookrightarrow ↪ xrightleftharpoons ⇌`);

export const SPACES = pairs(`, 0.1667em thinspace 0.1667em : 0.2222em > 0.2222em medspace 0.2222em ; 0.2778em thickspace 0.2778em ! -0.1667em
  negthinspace -0.1667em enspace 0.5em quad 1em qquad 2em`).set(" ", "0.25em").set("\n", "0.25em");

// Letters of other alphabets: [where A, a, 0 stand in Unicode; what stands elsewhere].
const holes = (text) => pairs(text);
export const ALPHABETS = {
  bold: [0x1d400, 0x1d41a, 0x1d7ce, null, 0x1d6a8, 0x1d6c2],
  bolditalic: [0x1d468, 0x1d482, 0x1d7ce, null, 0x1d71c, 0x1d736],
  double: [0x1d538, 0x1d552, 0x1d7d8, holes("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ")],
  script: [0x1d49c, 0x1d4b6, 0, holes("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ")],
  fraktur: [0x1d504, 0x1d51e, 0, holes("C ℭ H ℌ I ℑ R ℜ Z ℨ")],
  sans: [0x1d5a0, 0x1d5ba, 0x1d7e2],
  mono: [0x1d670, 0x1d68a, 0x1d7f6],
};

// The commands that choose an alphabet for their argument; roman: upright, italic: as usual but in one word.
export const FONTS = pairs(`mathbf bold boldsymbol bolditalic bm bolditalic pmb bolditalic mathbb double Bbb double mathcal script mathscr script mathfrak fraktur mathsf sans
  mathtt mono mathrm roman mathnormal plain mathit italic`);
