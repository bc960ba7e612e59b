package integration

// Chaos: control planes that fail in many ways, a hostile control plane, clients that connect, leave and
// request anything, hostile clients, gRPC channels, and relays that are killed and restart with their
// store.

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	chaosTime    = flag.Duration("chaos", 15*time.Second, "how long the chaos lasts")
	chaosSeed    = flag.Uint64("chaos-seed", 0, "the seed of all random decisions; 0: the current time")
	chaosAll     = flag.Bool("chaos-all", false, "also test a store, control planes that restart before they have restored their resources, an authority with two servers, and rollouts")
	chaosAttacks = flag.Bool("chaos-attacks", false, "with -chaos-all: reloads, and a hostile client of each kind")
)

// TestChaos checks that during all failures no client receives anything false: no content that never existed,
// no content older than what it had, no removal of a resource that was never removed, and no empty state
// before the first answer. After one RPC has reached a backend through a redirect to another authority, all
// later RPCs do. Once the control plane knows that clients have rejected a change, the relay sends it to no
// new client; new clients begin with the accepted state. If a control plane ends streams because of some names,
// no client hears that of another name. No client is sent a Listener whose address another one of its Listeners has, as
// far as the relay can know. After the failures, every client holds exactly the resources of the control planes, also
// through a view, and those that it refused and that came again with another version; and a control plane is requested
// only what clients want.
func TestChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-chaos %v -chaos-seed %d", *chaosTime, seed)
	actors := uint64(0)
	actor := func() *rand.Rand {
		actors++
		return rand.New(rand.NewPCG(seed, actors))
	}
	planes := []*chaosPlane{
		startChaosPlane(t, string(delta), delta, 1, actor()),
		startChaosPlane(t, string(sotw), sotw, 1, actor()),
	}
	if *chaosAll {
		planes = append(planes, startChaosPlane(t, pairName, delta, 2, actor()))
		// Rollouts need a store: without one, a restarted relay accepts the first responses, even poison.
		rolled := startChaosPlane(t, rolledName, []form{delta, sotw}[actor().IntN(2)], 1, actor())
		rolled.poison = newChaosPoison()
		planes = append(planes, rolled)
	}
	shop := startChaosShop(t, actor())
	evil := startHostilePlane(t, actor())
	listeners := startChaosListeners(t, actor)
	config := chaosConfig(slices.Concat(planes, shop.planes(), listeners.all()), evil)
	var attackers *chaosAttackers
	if *chaosAll && *chaosAttacks {
		attackers = &chaosAttackers{canary: startControlPlane(t, delta)}
		cert, key, roots := writeCertificate(t)
		attackers.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		config = attackable(config, attackers.canary.address, startQuietPlane(t), cert, key)
	}
	if *chaosAll {
		config = storing(t, config, "")
	}
	if attackers != nil {
		attackers.config = config
		attackers.control = startRelay(t, relayTo(attackers.canary.address, "delta"))
	}
	relays := newRelays(t, config)
	odd := []*chaosPlane{startOddPlane(t, delta, actor()), startOddPlane(t, sotw, actor())}
	oddRelays := newRelays(t, oddConfig(odd))

	chaos, stop := context.WithTimeout(context.Background(), *chaosTime)
	defer stop()
	began := time.Now()
	var running, living sync.WaitGroup
	life, end := context.WithCancel(context.Background())
	defer func() {
		end()
		living.Wait()
	}()
	quiet, published := make(chan struct{}), make(chan struct{})
	var rejecting atomic.Bool
	rejecting.Store(true)
	var clients []*chaosClient
	for _, p := range append(slices.Clone(planes), odd...) {
		p.truth.found = stop
		changes, accidents := actor(), actor()
		if p.poison != nil {
			running.Go(func() { p.poisonSome(chaos, changes) })
		} else {
			running.Go(func() { p.change(chaos, changes) })
		}
		running.Go(func() { p.suffer(chaos, accidents) })
		relays := relays
		if p.bad != nil {
			relays = oddRelays
		}
		for n := range 6 {
			f := []form{delta, sotw}[n%2]
			r, rejections := actor(), actor()
			var mu sync.Mutex
			c := newChaosClient(p, f, n, relays, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return p.poison == nil && rejecting.Load() && rejections.IntN(10) == 0
			}, r)
			if p.poison != nil {
				c.steady = topic{clusterType, wildcard}
			}
			c.comesBack = n%4 < 2 // clients of both forms
			c.leaves = p.bad != nil && n >= 4
			clients = append(clients, c)
			living.Go(func() { c.live(life, quiet, published) })
		}
	}
	for n := range 3 {
		c := newChaosClient(planes[0], delta, n, relays, func() bool { return false }, actor())
		c.id = fmt.Sprintf("viewer %d", n)
		c.view, c.steady = viewed(planes), topic{endpointType, wildcard}
		clients = append(clients, c)
		living.Go(func() { c.live(life, quiet, published) })
	}
	listeners.run(chaos, life, &running, &living, relays, quiet, stop, actor)
	channel := shop.open(t, relays)
	shop.tour(channel)
	moves := actor()
	running.Go(func() { shop.move(chaos, moves) })
	for _, p := range shop.planes() {
		if p.truth.found = stop; p == shop.annex && !*chaosAll {
			continue // without a store, a new relay would not have the endpoints of the other backend
		}
		accidents := actor()
		running.Go(func() { p.suffer(chaos, accidents) })
	}
	running.Go(func() { shop.visit(chaos, channel) })
	for range 3 {
		r := actor()
		running.Go(func() { beHostile(chaos, relays.address, r) })
	}
	if attackers != nil {
		attackers.relays = relays
		acts, reloads := actor(), actor()
		running.Go(func() { attackers.run(chaos, t, acts) })
		running.Go(func() { attackers.reload(chaos, t, reloads) })
	}
	deaths, oddDeaths := actor(), actor()
	running.Go(func() { relays.die(chaos, deaths) })
	running.Go(func() { oddRelays.die(chaos, oddDeaths) })
	running.Go(func() {
		showProgress(chaos, os.Stdout, isTerminal(os.Stdout), began, *chaosTime, func() string {
			return fmt.Sprintf("%d relays, %d RPCs", relays.count(), shop.visits.Load())
		})
	})
	running.Wait()

	// The failures are over. All resources change once more, so that clients receive those that they have
	// rejected.
	planes = append(planes, odd...)
	all := slices.Concat(planes, shop.planes(), listeners.all())
	if wrong(t, all) {
		t.Logf("found after %v", time.Since(began).Round(time.Second))
		return
	}
	rejecting.Store(false)
	close(quiet)
	for _, p := range planes {
		for _, topic := range p.all() {
			// A control plane that is strict, or does not say that a name is absent, has all names at the end.
			if p.truth.now(topic) != absent || p.bad != nil {
				p.publish(topic, true)
			}
		}
	}
	close(published)
	within(t, grpcsBackoff, "the gRPC channel has a stream to the last relay", func() error {
		if streams := fetch(t, "http://"+relays.now.admin+"/clients"); !strings.Contains(streams, `"node": "shopper"`) {
			return errors.New("it has no stream")
		}
		return nil
	})
	channel.awaitReaches(someMethod, shop.moveTo(shop.last()))
	defer func() {
		for _, c := range clients {
			c.watched.read(func(h *chaosHeld) {
				if len(c.differences(h)) > 0 {
					c.explain(t, h)
					t.Logf("the last events of %s:\n%v\nthe last events of its control plane:\n%v", c.id, &c.past, &c.plane.past)
				}
			})
		}
		for _, p := range odd {
			if len(p.beyondWants(clients)) > 0 {
				t.Logf("the last events of %s:\n%v", p.name, &p.past)
			}
		}
	}()
	within(t, guardsSilence+patience, "all clients hold what the control planes have", func() error {
		var all []string
		for _, c := range clients {
			c.watched.read(func(h *chaosHeld) { all = append(all, c.differences(h)...) })
		}
		if len(all) > 0 {
			const some = 10
			return errors.New(strings.Join(all[:min(len(all), some)], "\n"))
		}
		return nil
	})
	within(t, oddLinger+patience, "the control planes are requested only what clients want", func() error {
		var all []string
		for _, p := range odd {
			all = append(all, p.beyondWants(clients)...)
		}
		if len(all) > 0 {
			return errors.New(strings.Join(all, "\n"))
		}
		return nil
	})
	listeners.settle(t)
	if attackers != nil {
		attackers.settle(t)
	}
	wrong(t, all)
	for _, p := range planes {
		p.truth.mu.Lock()
		t.Logf("%s: %d changes", p.name, p.truth.newest)
		p.truth.mu.Unlock()
		if p.poison != nil {
			t.Logf("%s: %d changes were poison; clients rejected them %d times, and the control plane received %d NACKs", p.name, len(p.poison.refused), p.poison.rejected, p.poison.nacked)
		}
	}
	t.Logf("%d relays, %d RPCs", relays.count(), shop.visits.Load())
}

// grpcsBackoff is the longest time that gRPC-Go may take to open a stream again after a series of relays that
// were killed before they had answered. The backoff of the stream is at most two minutes plus a random fifth,
// and that of the connection is the same.
const grpcsBackoff = 2 * 144 * time.Second

// guardsSilence is how old a delta stream without any response has to be before the guard removes the
// resources that it holds: docs/safety.md, "The guard".
const guardsSilence = time.Minute

// wrong fails the test if clients made impossible observations, and reports whether they did.
func wrong(t *testing.T, planes []*chaosPlane) (is bool) {
	for _, p := range planes {
		for _, wrong := range p.truth.violations() {
			t.Errorf("%s: %s", p.name, wrong)
			is = true
		}
	}
	return is
}

func chaosConfig(planes []*chaosPlane, evil *hostilePlane) string {
	var b strings.Builder
	b.WriteString(prelude + "authorities:\n")
	for _, p := range planes {
		b.WriteString(p.authority())
	}
	fmt.Fprintf(&b, "  - name: evil\n    servers: [%s]\n", chaosServerConfig(evil.address, delta))
	b.WriteString("old_style_names:\n")
	for _, p := range planes {
		b.WriteString(p.oldStyle())
	}
	b.WriteString("  - {when: node.cluster == \"evil\", authority: evil}\n")
	fmt.Fprintf(&b, "views:\n  - match: {type: endpoint, wildcard: true}\n    when: node.cluster == %q\n    collections:\n", viewerName)
	for _, p := range viewed(planes) {
		fmt.Fprintf(&b, "      - %s\n", p.glob()+wildcard)
	}
	return b.String()
}

// authority is the configuration of a control plane's authority.
func (p *chaosPlane) authority() string {
	hold := 500 * time.Millisecond
	if *chaosAll {
		hold = 5 * time.Second
	}
	var b strings.Builder
	var servers []string
	for _, s := range p.servers {
		servers = append(servers, chaosServerConfig(s.address, p.plane.speaks))
	}
	// The guard holds all resources that a restarted control plane does not have. It holds them for
	// longer than the control plane takes to restore them, but not beyond the end of the test.
	fmt.Fprintf(&b, "  - name: %s\n    guard: {ratio: 0.01, least: 1, hold: %s}\n", p.name, hold)
	if p.poison != nil {
		rollout := chaosRollout
		if *chaosAttacks { // the machine is busier
			rollout = strings.Replace(rollout, "soak: 2s", "soak: 5s", 1)
		}
		fmt.Fprintf(&b, "    rollout: %s\n", rollout)
	}
	fmt.Fprintf(&b, "    failover: {policy: unreachable, grace: 100ms}\n    servers: [%s]\n", strings.Join(servers, ", "))
	return b.String()
}

func chaosServerConfig(address string, speaks form) string {
	return fmt.Sprintf("{address: %s, protocol: %s, backoff: {base: 20ms, max: 200ms}}", address, speaks)
}

// oldStyle is the rule that looks up the names of a control plane's clients in its authority.
func (p *chaosPlane) oldStyle() string {
	return fmt.Sprintf("  - {when: node.cluster == %q, authority: %s}\n", p.name, p.name)
}

// viewed returns the control planes that are in the view: those with globs.
func viewed(planes []*chaosPlane) (all []*chaosPlane) {
	for _, p := range planes {
		if p.name == string(delta) || p.name == pairName {
			all = append(all, p)
		}
	}
	return all
}

// relays runs one relay at a time. When it kills a relay, it starts the next one.
type relays struct {
	t      testing.TB
	config string
	// spared is held, for reading, by those who need the current relay to stay.
	spared sync.RWMutex

	mu    sync.Mutex
	now   *relay
	which int         // the number of the current relay
	kills []time.Time // when each earlier relay was killed
}

func newRelays(t testing.TB, config string) *relays {
	return &relays{t: t, config: config, now: startRelay(t, config)}
}

func (r *relays) address() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.address
}

// current returns the address and the number of the current relay.
func (r *relays) current() (address string, which int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.address, r.which
}

func (r *relays) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.kills) + 1
}

// diedWithin reports whether the relay with this number was killed less than while after at.
func (r *relays) diedWithin(which int, at time.Time, while time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return which < len(r.kills) && r.kills[which].Sub(at) < while
}

// die replaces the relay now and then until ctx ends.
func (r *relays) die(ctx context.Context, random *rand.Rand) {
	const between = 4 * time.Second
	for pause(ctx, random, between) {
		r.mu.Lock()
		old := r.now
		r.mu.Unlock()
		if old.hasEnded() {
			r.t.Error("the relay ended by itself")
			return
		}
		r.spared.Lock()
		if ctx.Err() == nil {
			r.replace()
		}
		r.spared.Unlock()
	}
}

// replace kills the relay and starts another.
func (r *relays) replace() {
	r.mu.Lock()
	old := r.now
	r.kills = append(r.kills, time.Now())
	r.mu.Unlock()
	old.kill(r.t)
	next := startRelay(r.t, r.config)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.which = next, r.which+1
}
