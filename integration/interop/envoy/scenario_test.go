package envoy

// Scenarios, and the comparison of an Envoy behind the relay with one that is connected directly.

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"sigs.k8s.io/yaml"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// form is how Envoy speaks to its control plane.
type form struct{ delta, aggregated bool }

func (f form) String() string {
	variant, streams := "SotW", "per type"
	if f.delta {
		variant = "delta"
	}
	if f.aggregated {
		streams = "ADS"
	}
	return variant + " " + streams
}

var (
	forms           = []form{{true, true}, {false, true}, {true, false}, {false, false}}
	aggregatedForms = []form{{true, true}, {false, true}}
)

// Upstream forms, between the relay and the control plane.
const (
	direct = "direct" // no relay
	delta  = "delta"
	sotw   = "sotw"
)

// scenario is a test that runs with an Envoy behind the relay, and with one that is connected directly.
type scenario struct {
	name   string // the test's
	planes []kind // default: the scripted one
	forms  []form // default: all
	// only reports whether a kind of control plane runs with a form. Default: all do with all.
	only func(kind, form) bool
	// upstream has the forms between relay and control plane. Default: both.
	upstream []string
	// distance delays what the control plane hears and says, each way.
	distance time.Duration
	// linked says that Envoy connects through side.link, which the scenario can cut.
	linked bool
	// globs says that Envoy requests the Listeners and Clusters of the authority by globs. There are no old-style names.
	globs bool
	// late says that run starts the control plane and Envoy. By default they are started before.
	late bool
	// relay changes the relay's configuration.
	relay func(s *side, config peers.Config)
	// flags are further flags of the command that prints the bootstrap.
	flags []string
	// bootstrapFlags returns further flags of the command that prints the bootstrap. Only behind the relay.
	bootstrapFlags func(s *side) []string
	// bootstrap changes the bootstrap.
	bootstrap func(s *side, bootstrap object)
	// maxConnectionAge is the age at which the control plane ends a connection of a direct Envoy.
	maxConnectionAge time.Duration
	// unversioned reports whether versions may differ with a form. Say why.
	unversioned func(form) bool
	// differs reports whether some lines of the summaries may differ in a row. Say why.
	differs func(r row, line string) bool
	// slack returns how many more requests may fail with the relay, or with a sign how many fewer must, in a scenario in
	// which requests fail without it.
	slack func(direct int) int
	run   func(s *side)
}

// side is a run of a scenario: a control plane, perhaps a relay, and an Envoy.
type side struct {
	*testing.T
	scenario scenario
	form     form
	upstream string
	plane    *plane
	reach    string       // the address at which the control plane is reached
	link     *peers.Link  // before the server, in scenarios that are linked
	relay    *peers.Relay // nil if Envoy is connected directly
	another  *peers.Relay // in scenarios with two
	envoy    *envoy
	server   string // the address to which Envoy connects
	polled   string // the address that Envoy polls, in scenarios with REST
	address  string // of Envoy's first listener
	client   *http.Client
	load     *generator

	// The listeners of needy.
	routeless, filterless, keyless call

	shared    *shared
	addresses int             // of shared.addresses that this side has taken
	pushed    time.Time       // the last push
	times     []time.Duration // from a push to Envoy's last update
	steps     []step          // what was seen
	expected  []step          // what was seen on the direct side; nil there
	problems  []string        // differences from the direct side
}

// shared has what the sides of a scenario have in common, so that their resources have the same contents. The
// sides run one after the other.
type shared struct {
	t          testing.TB
	addresses  []string
	backends   map[string]*backend
	identities map[string]*identity
	secure     string // the address of the secure backend
	folder     string // of the files that Envoy reads
}

// step is what was seen after a step of a scenario.
type step struct {
	name    string
	summary []string
}

// outcome is the outcome of a side.
type outcome struct {
	row      row // without results
	steps    []step
	problems []string
	times    []time.Duration
	sent     int
	failed   map[string]int
}

// stopped is what a side panics with when it cannot go on.
type stopped struct{}

// play runs a scenario in all forms, and compares.
func play(t *testing.T, sc scenario) {
	requireEnvoy(t)
	t.Parallel()
	sc.name = t.Name()
	if sc.planes == nil {
		sc.planes = []kind{scripted}
	}
	if sc.forms == nil {
		sc.forms = forms
	}
	if sc.upstream == nil {
		sc.upstream = []string{delta, sotw}
	}
	for _, k := range sc.planes {
		for _, f := range sc.forms {
			if sc.only != nil && !sc.only(k, f) {
				continue
			}
			name := f.String()
			if len(sc.planes) > 1 {
				name = string(k) + ", " + name
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				common := &shared{t: t, backends: map[string]*backend{}}
				var alone outcome
				if !t.Run(direct, func(t *testing.T) { alone = sc.play(t, k, f, direct, common, nil) }) {
					return
				}
				for _, upstream := range sc.upstream {
					t.Run(upstream, func(t *testing.T) {
						behind := sc.play(t, k, f, upstream, common, alone.steps)
						judge(t, sc, alone, behind)
					})
				}
			})
		}
	}
}

// play runs a scenario on one side.
func (sc scenario) play(t *testing.T, k kind, f form, upstream string, common *shared, expected []step) (o outcome) {
	s := &side{T: t, scenario: sc, form: f, upstream: upstream, plane: newPlane(t, k), shared: common, expected: expected}
	s.client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	s.address = s.newAddress()
	s.reach = s.plane.address
	if sc.distance > 0 {
		s.reach = peers.NewLink(t, s.reach, sc.distance).Address
	}
	s.server = s.reach
	if upstream == direct && sc.maxConnectionAge > 0 {
		s.plane.options = append(s.plane.options, grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: sc.maxConnectionAge, MaxConnectionAgeGrace: time.Millisecond,
		}))
	}
	if !sc.late {
		s.plane.start()
	}
	if upstream != direct {
		config := s.relayConfig()
		if sc.relay != nil {
			sc.relay(s, config)
		}
		s.relay = peers.StartRelay(t, config)
		s.server = s.relay.Address
	}
	if sc.linked {
		s.link = peers.NewLink(t, s.server, 0)
		s.server = s.link.Address
	}
	s.envoy = newEnvoy(t, s.bootstrap())
	if !sc.late {
		s.envoy.start()
	}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (stopped{}) {
				panic(p)
			}
		}()
		sc.run(s)
	}()
	o = outcome{row: s.row(), steps: s.steps, problems: s.problems, times: s.times}
	if s.load != nil {
		o.sent, o.failed = s.load.end()
	}
	return o
}

// launch starts the control plane and Envoy, in scenarios in which run does so: what was pushed before is what Envoy
// starts with.
func (s *side) launch() {
	s.Helper()
	s.plane.start()
	s.envoy.start()
}

// relayConfig returns the configuration of the relay in front of the control plane.
func (s *side) relayConfig() peers.Config {
	config := peers.ConfigFor(s.reach, s.upstream)
	if s.scenario.globs {
		delete(config, "old_style_names")
	}
	return config
}

// warning is a line that the command prints to its standard error.
var warning = regexp.MustCompile(`(?m)^warning: .*\n`)

// bootstrap returns what `xds-relay bootstrap --for envoy` prints, in the side's form.
func (s *side) bootstrap() object {
	s.Helper()
	file := filepath.Join(s.TempDir(), "relay.yaml")
	config := s.relayConfig()
	config["listeners"] = []any{peers.Config{"address": "127.0.0.1:0"}}
	delete(config["authorities"].([]any)[0].(peers.Config)["servers"].([]any)[0].(peers.Config), "protocol")
	if s.relay != nil {
		file = s.relay.File()
	} else {
		text, err := yaml.Marshal(config)
		if err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			s.Fatal(err)
		}
	}
	args := []string{"bootstrap", "--for", "envoy", "--config", file, "--server", s.server, "--node-id", nodeID}
	args = append(args, s.scenario.flags...)
	if s.relay != nil && s.scenario.bootstrapFlags != nil {
		args = append(args, s.scenario.bootstrapFlags(s)...)
	}
	command := exec.Command(peers.Binary(), args...)
	command.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // by default it ends a second later
	printed, err := command.CombinedOutput()
	if err != nil {
		s.Fatalf("xds-relay bootstrap: %v: %s", err, printed)
	}
	printed = warning.ReplaceAll(printed, nil)
	var all object
	if err := yaml.Unmarshal(printed, &all); err != nil {
		s.Fatal(err)
	}
	dynamic := all["dynamic_resources"].(object)
	api := dynamic["ads_config"].(object)
	if !s.form.delta {
		api["api_type"] = "GRPC"
	}
	if !s.form.aggregated {
		delete(dynamic, "ads_config")
		for _, key := range []string{"lds_config", "cds_config"} {
			dynamic[key] = object{"api_config_source": api, "resource_api_version": "V3"}
		}
	}
	if s.scenario.bootstrap != nil {
		s.scenario.bootstrap(s, all)
	}
	return all
}

// newAddress returns an address for a listener of Envoy. It is the same on each side.
func (s *side) newAddress() string {
	s.Helper()
	if s.addresses == len(s.shared.addresses) {
		s.shared.addresses = append(s.shared.addresses, peers.Address(s))
	}
	s.addresses++
	return s.shared.addresses[s.addresses-1]
}

// backend returns the backend with an id. All sides have the same.
func (s *side) backend(id string) *backend {
	s.Helper()
	if s.shared.backends[id] == nil {
		s.shared.backends[id] = startBackend(s.shared.t, id)
	}
	return s.shared.backends[id]
}

// push changes the resources of the control plane, as one change.
func (s *side) push(change func(world)) {
	s.Helper()
	s.pushed = time.Now()
	s.plane.push(change)
}

// limit returns how long a side behind the relay may take for what the direct side has done.
func (s *side) limit() time.Duration {
	if reason, _ := knownDifference(s.row()); reason != "" {
		return 10 * time.Second
	}
	return 40 * time.Second
}

func (s *side) row() row {
	return row{scenario: s.scenario.name, plane: s.plane.kind, form: s.form, upstream: s.upstream}
}

// await waits for an event. Behind the relay, an event that does not come is a difference, which ends the run.
func (s *side) await(what string, try func() error) {
	s.Helper()
	// Envoy says itself when it was updated, so looking seldom makes no time longer.
	const pause = 30 * time.Millisecond
	if s.expected == nil {
		if err := peers.WithinEvery(pause, peers.Patience, try); err != nil {
			s.Fatalf("waited in vain until %s: %v", what, err)
		}
		return
	}
	if err := peers.WithinEvery(pause, s.limit(), try); err != nil {
		s.problem("waited in vain until %s: %v", what, err)
		panic(stopped{})
	}
}

func (s *side) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// step waits for an event, and compares the states of the Envoys after it.
func (s *side) step(name string, try func() error) {
	s.Helper()
	s.await(name, try)
	summary := s.settled()
	if at, err := s.envoy.updated(); err == nil && at.After(s.pushed) && !s.pushed.IsZero() {
		s.times = append(s.times, at.Sub(s.pushed))
	}
	s.compare(name, summary)
}

// compare compares what is seen, a line for each thing, with what was seen on the direct side.
func (s *side) compare(name string, summary []string) {
	s.steps = append(s.steps, step{name, summary})
	if s.expected == nil {
		return
	}
	if len(s.expected) < len(s.steps) {
		s.problem("%s: the direct side has no such step", name)
		return
	}
	if lines := s.differences(summary); len(lines) > 0 {
		s.problem("after %q:\n%s", name, strings.Join(lines, "\n"))
	}
}

// settled returns the state of Envoy. On the direct side it waits until it does not change any more, and behind
// the relay until it is the same as there, or for some seconds. A Listener that drains still uses its routes.
func (s *side) settled() []string {
	s.Helper()
	const (
		calm  = 200 * time.Millisecond
		pause = 40 * time.Millisecond
		grace = 5 * time.Second
	)
	var last []string
	since := time.Now()
	_ = peers.WithinEvery(pause, grace, func() error {
		draining, err := s.envoy.stat(`^listener_manager\.total_(listeners|filter_chains)_draining$`)
		if err != nil {
			return err
		}
		now, err := s.envoy.summary(s.versions())
		if err != nil {
			return err
		}
		if len(difference(last, now)) > 0 {
			last, since = now, time.Now()
		}
		if draining > 0 {
			return errors.New("a Listener drains")
		}
		if s.expected != nil && len(s.expected) > len(s.steps) && len(s.differencesFrom(s.expected[len(s.steps)].summary, now)) == 0 {
			return nil
		}
		if s.expected == nil && time.Since(since) > calm {
			return nil
		}
		return errors.New("not yet")
	})
	return last
}

// versions reports whether the versions of both sides are comparable: with SotW on one side of the relay and
// delta on the other, a resource's version is another.
func (s *side) versions() bool {
	if s.scenario.unversioned != nil && s.scenario.unversioned(s.form) {
		return false
	}
	return s.upstream == direct || s.form.delta == (s.upstream == delta)
}

// severalNames is for scenarios with several names of a type, or with names beside a wildcard. In SotW a resource has
// the version of the response that brought it, and which other names that response has depends on the moment, and on
// the streams: Envoy may have one for each name, and the relay has one for all names and another for the wildcard.
func severalNames(f form) bool { return !f.delta }

func (s *side) differences(summary []string) []string {
	return s.differencesFrom(s.expected[len(s.steps)-1].summary, summary)
}

func (s *side) differencesFrom(expected, summary []string) []string {
	var lines []string
	if !s.versions() {
		expected = withoutVersions(expected)
	}
	for _, line := range difference(expected, summary) {
		if s.scenario.differs == nil || !s.scenario.differs(s.row(), line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// reaches returns a condition: requests through Envoy's listener reach a backend.
func (s *side) reaches(b *backend) func() error { return s.reachesAt(s.address, b) }

func (s *side) reachesAt(address string, b *backend) func() error {
	return func() error {
		id, err := visit(s.client, "http://"+address+"/")
		if err == nil && id != b.id {
			err = fmt.Errorf("a request reached %q", id)
		}
		return err
	}
}

// send begins to send requests through Envoy's first listener, until the scenario ends. How long one takes is a matter
// of the machine.
func (s *side) send() {
	s.load = generate(s, &http.Client{Timeout: peers.Patience, Transport: s.client.Transport}, "http://"+s.address+"/")
}
