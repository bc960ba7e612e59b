// Package rights decides which resources a client may have, by the rules of the configuration.
//
// A rule has two CEL expressions over `authority`, `type_url`, `name` and `identity`: `when` selects what the rule
// applies to, and `allow` decides. The first rule whose `when` is true decides. Without such a rule, the client may
// not have the resource. An expression that cannot be evaluated denies, also in `when`. The Node is not a variable,
// because clients can put anything there.
//
// Most parts of an expression do not read `name`. So a rule is divided into the operands of its &&, || and !
// (condition.go), and the operands that do not read the name are evaluated once for an identity, an authority and a
// type (place.go). Clients whose identities are equal in the parts that the rules read are one Class, and share those
// results (class.go). Other clients share the residual of a rule if it no longer reads the identity (shared.go). An
// index of names and their prefixes finds the rules that may apply to a name (finder.go). String comparisons are
// evaluated without CEL (comparison.go).
package rights
