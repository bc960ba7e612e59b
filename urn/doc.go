// Package urn parses, compares and prints xdstp names.
//
//	xdstp://[{authority}]/{resource type}/{id/*}?{context parameters}{#processing directive,*}
//
// TP1: "URI-based xDS resource names" has two forms of names, and so has this
// package. A [URN] names one resource and is a complete cache key. A [URL] locates a
// resource: it may end in a glob and may have directives. [KeyOf] is the fast way for
// names from the wire, which have no directives.
//
// # When two names are the same
//
// TP1: "Normalization". Two names are the same if all their components match, in any
// order of the parameters. A name is first split at its raw delimiters, and then each
// component is percent-decoded: foo%2Fbar/baz is not foo/bar/baz, and ?x=a%26b is not
// ?x=a&b, but b%3Ac and b:c are the same. Components are opaque: the authority has no
// case folding, the id no dot segments.
//
// Each name has one canonical spelling, in which this package stores and prints it.
// Two names are the same exactly if their canonical spellings are equal. So URN, URL and
// Key can be compared with ==, and used as map keys.
//
// # The canonical spelling
//
// Characters that RFC 3986 allows in a component are plain (not escaped); all others are
// escaped, with upper-case digits. Where TP1 leaves a choice, the canonical spelling is
// one that Envoy and gRPC both read correctly:
//
//   - Parameters are sorted by their decoded keys. Envoy prints them sorted by
//     encoded pairs, grpc-go by decoded keys; both accept any order.
//   - A + and a ; have no special meaning, and are escaped in parameters: grpc-go
//     reads a plain + as a space, and ignores a parameter with a plain ;.
//   - A parameter without = has an empty value: ?x is ?x=. A ? with nothing
//     after it is the same as no parameters. An empty parameter, as in
//     ?x=1&&y=2, is an error: Envoy reads an empty key there, grpc-go nothing.
//   - An @ is escaped in the authority, because grpc-go cuts off the text before it.
//     Brackets are plain there, as both clients print them.
//   - The id may be empty: xdstp://a/t/ and xdstp://a/t are the same name. Both
//     clients print the second, but grpc-go reads only the first.
//   - A * is a glob, escaped or not: Envoy and the protobuf forms do not
//     distinguish them.
//   - A name has at most one directive of each kind; alt comes before entry.
//
// # Limits
//
// A name has at most [MaxLength] bytes, as given and in its canonical spelling.
// Decoded components are valid UTF-8 without control characters. Other characters that
// Envoy and gRPC print unescaped (spaces, quotes, other scripts) are accepted, and
// escaped in the canonical spelling.
//
// All values are immutable and safe for concurrent use.
package urn
