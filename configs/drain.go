package configs

// This file is the keys of `drain`.

import "time"

// Drain says how the relay shuts down.
type Drain struct {
	// How long the relay still accepts connections after SIGTERM, while `/readyz` and gRPC health report
	// that it is not ready. Load balancers need that time to notice.
	Delay time.Duration `yaml:"delay" default:"0s" allow:"zero"`
	// The time over which the relay then closes its connections one by one, so that clients do not all
	// connect to another relay at once. With few connections it takes a second for each. 0s closes them
	// all at once.
	Time time.Duration `yaml:"time" default:"30s" allow:"zero"`
}

// Bounds of times after which connections end.
const (
	mostDrain = 24 * time.Hour
	leastAge  = 100 * time.Millisecond
	mostAge   = 365 * 24 * time.Hour
)
