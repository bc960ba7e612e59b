package configs

// This file is the keys of `drain`.

import "time"

// Drain says how the relay ends.
type Drain struct {
	// How long the relay goes on accepting connections after SIGTERM, with `/readyz` and gRPC
	// health saying that it is not ready: as long as load balancers take to notice.
	Delay time.Duration `yaml:"delay" default:"0s" allow:"zero"`
	// Over what time the relay then sends its clients away, each at a moment of its own, so that
	// they do not come to another relay at once. With few connections it takes a second for each.
	// 0s sends them away at once.
	Time time.Duration `yaml:"time" default:"30s" allow:"zero"`
}

// Bounds of times after which connections end.
const (
	mostDrain = 24 * time.Hour
	leastAge  = 100 * time.Millisecond
	mostAge   = 365 * 24 * time.Hour
)
