// Package envoyjson reads messages in JSON and YAML as Envoy does. Envoy's parser takes more than the JSON form of
// protobuf: names of enums in any case, one element in place of a list, and fields that it does not know, which it
// ignores. In YAML, yes and on are true, and a scalar is a number only if it is an integer.
//
// Envoy: "Filesystem subscriptions", and MessageUtil::loadFromYaml.
package envoyjson
