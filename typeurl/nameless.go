package typeurl

import (
	"unicode"
	"unicode/utf8"
)

// Istio's types whose resources have no name: their one resource is the whole answer
// to a wildcard.
const (
	nameTable   = Prefix + "istio.networking.nds.v1.NameTable"
	proxyConfig = Prefix + "istio.mesh.v1alpha1.ProxyConfig"
	bootstrap   = Prefix + "envoy.config.bootstrap.v3.Bootstrap"
)

// Nameless says that resources of a type have no name at all: neither inside nor,
// unless somebody gives them one, in a Resource around them.
func Nameless(url string) bool {
	switch url {
	case nameTable, proxyConfig, bootstrap:
		return true
	}
	return false
}

// IsName says whether what a message of an unknown type has in field 1 can be its
// name. A name is not empty, is UTF-8 and has no control characters. The entries of
// a map and most other messages begin with one: the tag of their own first field.
func IsName(field []byte) bool {
	if len(field) == 0 || !utf8.Valid(field) {
		return false
	}
	for _, r := range string(field) {
		if unicode.IsControl(r) {
			return false
		}
	}
	return true
}
