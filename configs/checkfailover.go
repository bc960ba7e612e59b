package configs

// This file checks the keys of `authorities[].failover`, and that servers differ.

import "fmt"

func (k *checker) failover(path string, a Authority) {
	addresses := map[string]int{}
	for i, s := range a.Servers {
		first, twice := addresses[s.Address]
		if at := fmt.Sprintf("%s.servers[%d].address", path, i); twice && s.Address != "" {
			k.fail(at, "%q is already %s.servers[%d] (want each server once)", s.Address, path, first)
		} else {
			addresses[s.Address] = i
		}
	}
	path += ".failover"
	if a.Directory != "" && len(a.Servers) == 0 {
		for _, key := range []string{".policy", ".timeout", ".grace", ".shared_versions"} {
			if k.has(path + key) {
				k.fail(path+key, "is for servers, and a directory can always be reached (want no such key)")
			}
		}
	}
	if f := a.Failover; f.SharedVersions && len(a.Servers) == 1 {
		k.fail(path+".shared_versions", "is true, but there is one server (want several, or no such key)")
	}
}
