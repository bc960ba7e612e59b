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
// Plain in it are the characters that RFC 3986 allows in the component; all
// others are escaped, with upper-case digits. Where TP1 leaves a choice, the one
// that was taken is the one in which Envoy and gRPC both read from the canonical
// spelling what it means:
//
//   - Parameters are sorted by their decoded keys. Envoy prints them sorted by
//     encoded pairs, grpc-go by decoded keys; neither minds when reading.
//   - A + and a ; stand for themselves, and are escaped in parameters. Plain,
//     grpc-go reads the first as a space and ignores a parameter that holds the
//     second.
//   - A parameter without = has an empty value: ?x is ?x=. A ? with nothing
//     after it is the same as no parameters. An empty parameter, as in
//     ?x=1&&y=2, is an error: Envoy reads an empty key there, grpc-go nothing.
//   - An @ is escaped in the authority, where grpc-go would cut off what
//     precedes it. Brackets are plain there, as both clients print them.
//   - The id may be empty: xdstp://a/t/ and xdstp://a/t are the same name. Both
//     clients print the second, but grpc-go reads only the first.
//   - A * is a glob whether it is escaped or not. Envoy and the protobuf forms
//     cannot tell the two apart.
//   - There is at most one directive of a kind, and alt is printed before entry.
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
