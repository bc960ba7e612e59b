package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/xds-relay/xds-relay/store"
)

// v: the store. The cost of storing during a storm, compared with the same storm without a store. And a
// relay that is killed with its control plane and then serves a herd from the store, compared with the
// same herd at the warm relay.

// systemStoring is the relay with an encrypted store.
const systemStoring = "xds-relay with a store"

func stores() (all []scenario) {
	for _, v := range []struct {
		id, what       string
		clients, names int
	}{
		{"v1", "20 clients have all of them", 20, 10_000},
		{"v2", "300 clients have all of them", 300, 10_000},
		{"v3", "1,000 clients have 10 each, which no other has", 1000, 10},
	} {
		storm := of(v.id, "storing: 1,000 updates/s of 10,000 resources of 1 KB; "+v.what,
			[]string{systemRelay, systemStoring}, func(b *bench, system string) []metric {
				return b.storing(system, b.scale(v.clients, v.clients/10), b.scale(v.names, min(v.names, 1000)))
			})
		storm.compare = costOfStoring
		all = append(all, storm)
	}
	return append(all, of("v4", "10,000 clients with 10 names of 1 KB each; the relay and the control plane are killed, and the relay starts",
		[]string{systemStoring}, func(b *bench, _ string) []metric { return b.killed() }).atMost(1))
}

// storeConfig is the configuration of a store, and of a cache that keeps resources that clients no
// longer use.
const storeConfig = `store: {path: "%s", key_file: "%[1]s.key", wait: 0s}
cache: {idle_entries: 1000000}
`

// storeIn returns the configuration of a store in a folder, and creates its key if there is none.
func storeIn(dir string) (string, error) {
	path := filepath.Join(dir, "store")
	config := fmt.Sprintf(storeConfig, path)
	if _, err := os.Stat(path + ".key"); err == nil {
		return config, nil
	}
	key, err := store.NewKey()
	if err != nil {
		return "", err
	}
	return config, os.WriteFile(path+".key", key, 0o600)
}

// beginStoring is beginEmpty for a relay with a store, which is removed with the swarm.
func (b *bench) beginStoring(spec *Spec) *session {
	spec.Store = must(os.MkdirTemp("", "xds-relay-bench-store"))
	s := b.beginEmpty(systemRelay, spec)
	s.swarm.files = append(s.swarm.files, spec.Store)
	return s
}

const cpuPerUpdate = "CPU per update"

func (b *bench) storing(system string, clients, names int) []metric {
	const rate = 1000
	spec := &Spec{Delta: true, Resources: b.scale(10_000, 1000), Size: 1 << 10, PerClient: names}
	spec.Distinct = names < spec.Resources
	var s *session
	if system == systemStoring {
		s = b.beginStoring(spec)
	} else {
		s = b.beginEmpty(systemRelay, spec)
	}
	s.connectForAll(clients)
	s.await()
	during := time.Duration(b.scale(20, 2)) * time.Second
	s.stored()
	wrote, had := s.wrote(), s.counted()
	cpu, _ := s.stormed(rate, during, spec.Resources)
	s.stored()
	updates := int(during.Seconds() * rate)
	out := []metric{
		{cpuPerUpdate, "µs", micros(cpu, updates)},
		{"sent to clients per update", "KiB", float64(s.counted().Bytes-had.Bytes) / kib / float64(updates)},
	}
	if system == systemStoring {
		out = append(out,
			metric{"written to disk per update", "KiB", float64(s.wrote()-wrote) / kib / float64(updates)},
			metric{"size of the store, of that of the resources", "", s.storeSize() / float64(spec.Resources*spec.Size)},
		)
	}
	return out
}

// costOfStoring adds the cost of storing, compared with the relay that does not store.
func costOfStoring(of *result, round int) {
	with, there := of.value(systemStoring, cpuPerUpdate, round)
	without, ok := of.value(systemRelay, cpuPerUpdate, round)
	if there && ok && without > 0 {
		of.add(systemStoring, round, []metric{{"CPU of storing, of that of the rest", "%", 100 * (with - without) / without}})
	}
}

func (b *bench) killed() []metric {
	clients := b.scale(10_000, 1000)
	spec := &Spec{Delta: true, Resources: 10 * clients, Size: 1 << 10, PerClient: 10, Distinct: true}
	herd := command{Clients: clients, PerConn: 1, AtOnce: true, Each: true, Count: spec.Resources}
	s := b.beginStoring(spec)
	before := s.wrote()
	s.connect(herd)
	s.stored()
	written, size := s.wrote()-before, s.storeSize()
	s.comeBack(herd)
	warmCPU, warmLast := s.coldCPU, s.coldLast
	must(s.swarm.do(command{Do: "leave", Group: "all"}))
	s.server.stop()
	s.source.stop()

	began := time.Now()
	s.server = b.relay(spec, s.source.address)
	serves := time.Since(began)
	s.connect(herd)
	cpu := must(s.server.cpu())
	last := serves + s.coldLast
	return []metric{
		{"size of the store, of that of the resources", "", size / float64(spec.Resources*spec.Size)},
		{"written to disk, of the size of the resources", "", float64(written) / float64(spec.Resources*spec.Size)},
		{"warm: last client", "ms", millis(warmLast)},
		{"warm: CPU per client", "µs", micros(warmCPU, clients)},
		{"from the store: from exec to the first connection", "ms", millis(serves)},
		{"from the store: from exec to the last client", "ms", millis(last)},
		{"from the store: from exec to the last client, of that when warm", "", float64(last) / float64(warmLast)},
		{"from the store: CPU since exec, per client", "µs", micros(cpu, clients)},
	}
}

// stored waits until the relay has nothing more to write.
func (s *session) stored() {
	if s.spec.Store == "" {
		return
	}
	for deadline := time.Now().Add(patience); must(s.server.metric("xds_relay_store_pending")) > 0; {
		if time.Now().After(deadline) {
			check(fmt.Errorf("the relay does not store"))
		}
		pause(50 * time.Millisecond)
	}
}

// storeSize returns the size of the relay's store.
func (s *session) storeSize() float64 { return must(s.server.metric("xds_relay_store_bytes")) }

// wrote returns how many bytes all processes have written to the disk of the store.
func (s *session) wrote() int64 {
	if s.spec.Store == "" {
		return 0
	}
	return must(written(s.spec.Store))
}
