package configs

// This file is the keys of `store`.

import "time"

// Store is what the relay keeps on disk.
type Store struct {
	// The file. The relay makes it, in a folder that exists. Two relays cannot share one.
	Path string `yaml:"path" required:"true"`
	// How long the relay, after its start, waits for a control plane's own word before it serves
	// what it has stored. Clients' streams stay open meanwhile. 0s serves it at once.
	Wait time.Duration `yaml:"wait" default:"5s" allow:"zero"`
	// How old a stored resource may be that the relay serves, since it came from the control
	// plane. 0s is no limit.
	MaxAge time.Duration `yaml:"max_age" default:"0s" allow:"zero"`
	// How large the file may become. What has no room is not stored.
	MaxBytes DiskBytes `yaml:"max_bytes" default:"4GiB"`
	// The key with which the relay encrypts all that it stores: a file that
	// `xds-relay store keygen` makes.
	KeyFile string `yaml:"key_file" absent:"nothing is encrypted, and resources with secrets in them are not stored"`
}

// leastStore is the smallest file that has room for what the relay writes at once.
const leastStore DiskBytes = 1 << 20

func (k *checker) store(s Store) {
	if s.Path != "" && s.MaxBytes < leastStore {
		k.fail("store.max_bytes", "%s is too small (want %s or more)", s.MaxBytes, leastStore)
	}
}
