/* The document of GET /openapi.json: OpenAPI 3.1, made from the tables that requests are read by, so that it says what
 * they say. */
#ifndef SN_GATEWAY_OPENAI_OPENAPI_H
#define SN_GATEWAY_OPENAI_OPENAPI_H

/* JSON, freed with free(); NULL: memory is out. */
char *sn_openapi_text(void);

#endif
