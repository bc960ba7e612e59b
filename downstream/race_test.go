//go:build race

package downstream

// raceEnabled: the race detector allocates too, so that what is counted in bytes does
// not hold.
const raceEnabled = true
