//go:build race

package relay

// raceEnabled: everything takes ten times as long.
const raceEnabled = true
