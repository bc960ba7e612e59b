// Package operator answers the operator of a relay: pages and their JSON documents, explanations, differences, problems,
// and the actions of the admin listener. Package admin serves it, and admin/page renders it. It reads the relay through
// Readers and changes nothing but rollouts and, through Process, the configuration.
//
// No lock of the relay is held while an answer is made. An answer that costs much is kept for a while, and all operators
// share it.
package operator
