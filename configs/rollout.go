package configs

// This file is the keys of `authorities[].rollout`, and their checks.

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xds-relay/xds-relay/identity"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Rollout says which clients receive a change of an authority's resources first. See docs/rollout.md.
type Rollout struct {
	// The resource types whose changes are rolled out, by their short names or type URLs. Leave out
	// endpoints and secrets: a delay of their changes is an outage itself.
	Types []string `yaml:"types" absent:"all but endpoint, locality-endpoint and secret"`
	// An expression that gives the name of a client's cohort. Clients of one cohort behave alike. The
	// relay tries a change on some clients of each cohort. The expression is CEL over `node`, `identity`
	// and `user_agent`, the name and version of the client's program, such as envoy/1.30.1. Clients for
	// which the relay cannot evaluate it form one cohort. So do the clients of all cohorts after the
	// first 64.
	Cohort string `yaml:"cohort" default:"user_agent"`
	// How many clients of each cohort receive a change first.
	First int `yaml:"first" default:"1"`
	// The parts of each cohort that receive the change after that, step by step, before all clients do.
	Steps []string `yaml:"steps" default:"[1%, 10%, 50%]"`
	// How long each step takes.
	Soak time.Duration `yaml:"soak" default:"30s"`
	// After how many clients' rejections (NACK) the relay takes a change back.
	Rejections int `yaml:"rejections" default:"1"`
	// After how many clients' deaths the relay takes a change back. A client counts if its stream ends
	// within `soak` after it was sent the change, and it then stays away for `soak` or dies again.
	Deaths int `yaml:"deaths" default:"2"`
	// If a resource grows to this many times the size of the accepted one, the change waits until a
	// person approves it. More than 1.
	Grow Factor `yaml:"grow" default:"3.0"`
	// Whether all rollouts are frozen: no further client receives a change. Rejections still take
	// changes back.
	Frozen bool `yaml:"frozen" default:"false"`

	cohort program
	// agents are the cohorts by user agent, if the expression reads nothing else.
	agents *agentCohorts
	types  map[string]bool
	steps  []float64
}

// Factor is a number above 1. In YAML it is a number such as 3 or 2.5.
type Factor float64

// UnmarshalText sets f from its notation.
func (f *Factor) UnmarshalText(text []byte) error {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil || strings.Trim(string(text), "0123456789.") != "" {
		return fmt.Errorf("%q is not a factor (want a number above 1, such as 3 or 2.5)", text)
	}
	*f = Factor(n)
	return nil
}

// String returns f in its notation.
func (f Factor) String() string { return strconv.FormatFloat(float64(f), 'g', -1, 64) }

const userAgentVariable = "user_agent"

// ofCohorts are the expressions of `cohort`. The relay evaluates them when a client has sent its Node.
var ofCohorts = expressions{sync.OnceValues(func() (*cel.Env, error) {
	identities, err := identity.CELOptions(&corev3.Node{})
	if err != nil {
		return nil, err
	}
	return cel.NewEnv(
		identities,
		cel.Variable(nodeVariable, cel.ObjectType("envoy.config.core.v3.Node")),
		cel.Variable(userAgentVariable, cel.StringType),
	)
}), "node, identity and user_agent"}

// ofAgents are those of ofCohorts that read user_agent alone.
var ofAgents = expressions{sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.Variable(userAgentVariable, cel.StringType))
}), userAgentVariable}

// maxCohort bounds the name of a cohort, in bytes.
const maxCohort = 256

// CohortOf returns the cohort of a client, at most 256 bytes. An error means that the relay cannot
// evaluate the expression.
func (r *Rollout) CohortOf(c Client) (string, error) {
	if c.Node == nil {
		c.Node = &corev3.Node{}
	}
	if c.Identity == nil {
		c.Identity = anonymous
	}
	agent := agentOf(c.Node)
	if cohort, known := r.agents.get(agent); known {
		return cohort, nil
	}
	cohort, err := evalOver[string](r.cohort, map[string]any{nodeVariable: c.Node, identity.Variable: c.Identity, userAgentVariable: agent.String()})
	if err == nil && len(cohort) > maxCohort {
		return "", fmt.Errorf("gives %d bytes (want up to %d)", len(cohort), maxCohort)
	}
	if err == nil {
		r.agents.put(agent, cohort)
	}
	return cohort, err
}

// CohortOfAgent returns the cohort of a client of which only the user agent is known. ok is false if the expression reads
// more than that, or the relay cannot evaluate it.
func (r *Rollout) CohortOfAgent(agent string) (cohort string, ok bool) {
	if r.agents == nil {
		return "", false
	}
	cohort, err := r.CohortOf(Client{Node: &corev3.Node{UserAgentName: agent}})
	return cohort, err == nil
}

// UserAgent returns the name and version of a client's program, as expressions have it in user_agent.
func UserAgent(n *corev3.Node) string { return agentOf(n).String() }

// userAgent is the name and version of a client's program.
type userAgent struct {
	name, version       string
	built               bool // the version is a number:
	major, minor, patch uint32
}

// agentOf returns the program of a client, whichever field of its Node has the version.
func agentOf(n *corev3.Node) userAgent {
	a := userAgent{name: n.GetUserAgentName(), version: n.GetUserAgentVersion()}
	if build := n.GetUserAgentBuildVersion().GetVersion(); a.version == "" && build != nil {
		a.built, a.major, a.minor, a.patch = true, build.GetMajorNumber(), build.GetMinorNumber(), build.GetPatch()
	}
	return a
}

// String returns the name and the version, with a slash between them.
func (a userAgent) String() string {
	switch {
	case a.built:
		return fmt.Sprintf("%s/%d.%d.%d", a.name, a.major, a.minor, a.patch)
	case a.version == "":
		return a.name
	}
	return a.name + "/" + a.version
}

// agentCohorts caches the cohorts of user agents. Most clients have one of a few user agents, so the
// relay need not evaluate the expression for each new client. A nil agentCohorts has none.
type agentCohorts struct {
	mu    sync.RWMutex
	known map[userAgent]string
}

// maxAgents bounds the known user agents, because clients can make up any number of them.
const maxAgents = 256

func (c *agentCohorts) get(a userAgent) (cohort string, known bool) {
	if c == nil {
		return "", false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	cohort, known = c.known[a]
	return cohort, known
}

func (c *agentCohorts) put(a userAgent, cohort string) {
	if c == nil || len(a.name)+len(a.version) > maxCohort {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) < maxAgents {
		c.known[userAgent{strings.Clone(a.name), strings.Clone(a.version), a.built, a.major, a.minor, a.patch}] = strings.Clone(cohort)
	}
}

// RollsOut reports whether changes of a type are rolled out.
func (r *Rollout) RollsOut(typeURL string) bool {
	typeURL = xdstype.OfResources(typeURL)
	if r.types != nil {
		return r.types[typeURL]
	}
	switch typeURL {
	case xdstype.EndpointsV3, xdstype.LocalityEndpointV3, xdstype.SecretV3:
		return false
	}
	return true
}

// Parts returns the steps as fractions of 1.
func (r *Rollout) Parts() []float64 { return r.steps }

// rollout checks a rollout and compiles it.
func (k *checker) rollout(path string, r *Rollout) {
	if r == nil {
		return
	}
	if k.has(path+".types") && len(r.Types) == 0 {
		k.fail(path+".types", "is empty (want at least one type, such as listener, or no such key)")
	}
	for _, err := range r.compile() {
		k.fail(join(path, err.Path), "%w", err.Err)
	}
	if r.Grow <= 1 {
		k.fail(path+".grow", "%s is not more than 1 (want a number above 1, such as 3 or 2.5)", r.Grow)
	}
	if shortest := 10 * time.Millisecond; r.Soak < shortest {
		k.fail(path+".soak", "%s is too short (want %s or more)", r.Soak, shortest)
	}
}

// compile prepares r. The errors' paths are keys of the rollout.
func (r *Rollout) compile() (errs Errors) {
	var err error
	if r.cohort, _, err = ofCohorts.compile(r.Cohort, cel.StringType); err != nil {
		errs = append(errs, Error{Path: "cohort", Err: err})
	}
	if _, _, other := ofAgents.compile(r.Cohort, cel.StringType); other == nil {
		r.agents = &agentCohorts{known: map[userAgent]string{}}
	}
	return slices.Concat(errs, r.compileTypes(), r.compileSteps())
}

// compileSteps prepares Parts.
func (r *Rollout) compileSteps() (errs Errors) {
	before := 0.0
	for i, step := range r.Steps {
		if step == "" { // there is an error for that
			continue
		}
		part, err := parsePart(step)
		if err == nil && part <= before {
			err = fmt.Errorf("%s is not more than the step before it (want rising steps, such as [1%%, 10%%, 50%%])", step)
		}
		if err != nil {
			errs = append(errs, Error{Path: fmt.Sprintf("steps[%d]", i), Err: err})
			continue
		}
		before = part
		r.steps = append(r.steps, part)
	}
	return errs
}

// compileTypes prepares RollsOut.
func (r *Rollout) compileTypes() (errs Errors) {
	if len(r.Types) > 0 {
		r.types = map[string]bool{}
	}
	for i, word := range r.Types {
		if word == "" {
			continue
		}
		url, err := xdstype.Parse(word)
		url = xdstype.OfResources(url)
		if err == nil && r.types[url] {
			err = errors.New("is there twice (want each type once)")
		}
		if err != nil {
			errs = append(errs, Error{Path: fmt.Sprintf("types[%d]", i), Err: err})
		} else {
			r.types[url] = true
		}
	}
	return errs
}

// parsePart returns a percentage as a fraction of 1.
func parsePart(text string) (float64, error) {
	const all = 100
	digits, ok := strings.CutSuffix(text, "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if !ok || err != nil || !(n > 0 && n < all) {
		return 0, fmt.Errorf("%q is not a part of a cohort (want a percentage above 0%% and below 100%%, such as 10%%)", text)
	}
	return n / all, nil
}
