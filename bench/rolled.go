package main

// w: a rollout. What it costs where it is configured for types that nobody changes; where each update goes to
// one client first, and then to all; and where each update is rolled out in steps, the shortest that there are.

const (
	// systemPassing is the relay with a rollout of another type than that of the clients.
	systemPassing = "xds-relay with a rollout of other types"
	systemRolling = "xds-relay with a rollout"
	// systemFirst is the relay with a rollout that has no steps after the first client.
	systemFirst = "xds-relay with a rollout without steps"
)

func rollouts() []scenario {
	systems := []string{systemFloor, systemRelay, systemPassing, systemFirst, systemRolling}
	return []scenario{
		of("w1", "one of 100 shared resources of 1 KB changes, and is rolled out, 1,000 clients", systems, func(b *bench, system string) []metric {
			clients, n := b.scale(1000, 200), b.scale(10, 5)
			s := b.beginRolling(system, command{Clients: clients, PerConn: 1})
			cpu, _, last := s.updates(n)
			return []metric{
				{"CPU per message", "µs", micros(cpu, n*clients)},
				{"last client", "ms", millis(middle(last))},
				{"memory per client", "KiB", s.perClient(s.rest)},
			}
		}),
		of("w2", "5,000 clients come at once for 100 names, where there is a rollout", systems, func(b *bench, system string) []metric {
			clients := b.scale(5000, 500)
			s := b.beginRolling(system, command{Clients: clients, PerConn: 1, AtOnce: true})
			return []metric{
				{"CPU per client", "µs", micros(s.coldCPU, clients)},
				{"last client", "ms", millis(s.coldLast)},
				{"memory per client", "KiB", s.perClient(s.rest)},
			}
		}),
	}
}

// rolling is a rollout of endpoints, with the shortest steps.
const rolling = "types: [endpoint], soak: 10ms"

// beginRolling is beginWarm for a relay that may have a rollout.
func (b *bench) beginRolling(system string, connect command) *session {
	spec := &Spec{Delta: true, Resources: 100, Size: 1 << 10, PerClient: 100}
	switch system {
	case systemPassing:
		system, spec.Rollout = systemRelay, "types: [secret]"
	case systemFirst:
		system, spec.Rollout = systemRelay, rolling+", steps: []"
	case systemRolling:
		system, spec.Rollout = systemRelay, rolling
	}
	return b.beginWarm(system, spec, connect)
}
