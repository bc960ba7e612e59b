package configs

// This file is the keys of `store`.

import "time"

// Store says where and how the relay stores resources on disk.
type Store struct {
	// The file. The relay creates it; its folder has to exist. Two relays cannot share a file.
	Path string `yaml:"path" required:"true"`
	// How long the relay, after its start, waits for a control plane to answer before it serves the
	// stored resources. Clients' streams stay open during the wait. 0s serves them at once.
	Wait time.Duration `yaml:"wait" default:"5s" allow:"zero"`
	// The largest age of a stored resource that the relay serves, counted from when the control plane
	// sent it. 0s is no limit.
	MaxAge time.Duration `yaml:"max_age" default:"0s" allow:"zero"`
	// How large the file may become. The relay does not store resources that no longer fit.
	MaxBytes DiskBytes `yaml:"max_bytes" default:"4GiB"`
	// The key with which the relay encrypts everything that it stores: a file that `xds-relay store
	// keygen` creates.
	KeyFile string `yaml:"key_file" absent:"the relay encrypts nothing, and does not store resources that contain secrets"`
}

// leastStore is the smallest file that has room for one write of the relay.
const leastStore DiskBytes = 1 << 20

func (k *checker) store(s Store) {
	if s.Path != "" && s.MaxBytes < leastStore {
		k.fail("store.max_bytes", "%s is too small (want %s or more)", s.MaxBytes, leastStore)
	}
}
