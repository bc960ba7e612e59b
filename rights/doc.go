// Package rights decides what a client may have, by the rules of the configuration.
//
// A rule has two CEL expressions over `authority`, `type_url`, `name` and `identity`: `when` says
// what it is about, `allow` decides. The first rule whose `when` is true decides; if there is none,
// the client may not have it. An expression that cannot be evaluated denies, also in `when`.
// The Node is not among the variables, because clients can say anything there.
//
// Most of an expression does not read `name`. So a rule is cut into the operands of its &&, || and !
// (condition.go), and those that do not read the name are evaluated once for an identity, an
// authority and a type (place.go), and for all identities if they do not read that (shared.go). Clients whose identities are equal as far as the rules read them
// are one Class, and share that (class.go).
package rights
