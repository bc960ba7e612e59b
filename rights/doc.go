// Package rights decides what a client may have, by the rules of the configuration.
//
// A rule has two CEL expressions over `authority`, `type_url`, `name` and `identity`: `when` says
// what it is about, `allow` decides. The first rule whose `when` is true decides; if there is none,
// the client may not have it. An expression that cannot be evaluated denies, also in `when`.
// The Node is not among the variables, because clients can say anything there.
//
// Most of an expression does not read `name`. So a rule is cut into the operands of its &&, || and !
// (condition.go), and those that do not read the name are evaluated once for an identity, an
// authority and a type (place.go). Clients whose identities are equal as far as the rules read them
// are one Class, and share that (class.go). Other clients share what is left of a rule if that no
// longer reads the identity (shared.go). Of many rules, those that are about a name are found by the
// beginnings of names in them (finder.go). Comparisons of texts are made without CEL (comparison.go).
package rights
