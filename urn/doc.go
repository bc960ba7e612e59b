// Package urn parses, compares and prints xdstp names.
//
//	xdstp://[{authority}]/{resource type}/{id/*}?{context parameters}{#processing directive,*}
//
// TP1: "URI-based xDS resource names" has two forms of them, and so has this
// package. A [URN] names one resource and is a complete cache key. A [URL] says
// where to look: it may end in a glob and may carry directives. [KeyOf] is the
// short way for names that come over the wire, where there are no directives.
//
// # When two names are the same
//
// TP1: "Normalization": when they match component by component, whatever the
// order of the parameters. A name is first split at its raw delimiters and each
// component is percent-decoded afterwards, so foo%2Fbar/baz is not foo/bar/baz
// and ?x=a%26b is not ?x=a&b, while b%3Ac and b:c are the same. Components are
// opaque: the authority has no case folding, the id no dot segments.
//
// Each name has one canonical spelling, in which all names are held and
// printed. Two names are the same exactly when these strings are, so URN, URL
// and Key can be compared with == and be keys of maps.
//
// # The canonical spelling
//
// Plain in it are the characters that RFC 3986 allows in the component, all
// others are escaped, in upper case. The exceptions, and what is decided where
// TP1 says nothing, follow from one wish: what Envoy and gRPC both read from
// the canonical spelling is what it means.
//
//   - Parameters are sorted by their decoded keys. Envoy sorts encoded pairs,
//     grpc-go decoded keys; the order means nothing to either.
//   - + and ; are escaped in parameters: grpc-go reads one as a space and drops
//     what has the other. Unescaped, both stand for themselves.
//   - @ is escaped in the authority, where grpc-go would cut off what precedes
//     it. Brackets stay plain there, as both clients print them.
//   - The id may be empty. The last slash of xdstp://a/t/ may then be left out,
//     as both clients do when printing, but grpc-go only reads a name that has
//     it, so the canonical spelling does.
//   - A parameter without = has an empty value, as ?a=. ? alone is the same as
//     no parameters. An empty parameter (?a=1&&b=2) is an error: Envoy reads an
//     empty key there, grpc-go nothing.
//   - An escaped * is a glob where a plain one is. Envoy and the protobuf forms
//     cannot tell them apart, and no delimiter is hidden by it.
//   - The directives are printed in the order alt, entry.
//
// # Limits
//
// A name has at most [MaxLength] bytes, as given and in its canonical spelling.
// Decoded components are valid UTF-8 without control characters. Everything
// else that Envoy and gRPC print unescaped (spaces, quotes, other scripts) is
// accepted and escaped in the canonical spelling.
//
// All values are immutable and safe for concurrent use.
package urn
