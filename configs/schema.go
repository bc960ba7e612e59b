package configs

import _ "embed" // of the schema

// Schema is the JSON Schema of the configuration, for editors and other tools. `make generate` derives
// it from the declarations of the keys. It has the keys, their types and explanations. Parse checks what
// values mean, and how they refer to each other.
//
//go:embed schema.json
var Schema []byte
