package configs

import _ "embed" // of the schema

// Schema is the JSON Schema of the configuration, for editors and other tools. It is made of
// the declarations of the keys (`make generate`). It has the keys, their types and
// explanations; what values mean to each other is for Parse to check.
//
//go:embed schema.json
var Schema []byte
