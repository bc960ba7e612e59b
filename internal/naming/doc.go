// Package naming decides what the names that a client requests mean, and which of them it may have: names to topics, by
// the router of authority/, and the rules of rights/ on them. The relay and an operator's question are answered by the
// same code.
package naming
