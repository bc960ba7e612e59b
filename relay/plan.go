package relay

// What a configuration would change in the running relay: a reload is planned, and not made.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/store"
)

// checks are the questions of operators what a configuration would change.
type checks struct {
	parse func(name string, text []byte) (*configs.Config, error)
	// one is held while one is answered: each uses much of a processor.
	one sync.Mutex
}

// Changes is what a configuration would change in the running relay, as POST /check answers it.
type Changes struct {
	// Running is the hash of the configuration that runs, and Checked that of the other one.
	Running string `json:"running"`
	Checked string `json:"checked,omitempty"`
	// Errors are why it cannot be loaded. Then nothing else is known.
	Errors   []ConfigError `json:"errors,omitempty"`
	Warnings []ConfigError `json:"warnings,omitempty"`

	Listeners   []ListenerChange  `json:"listeners,omitempty"`
	Authorities []AuthorityChange `json:"authorities,omitempty"`
	// Keys are the other parts of the configuration that differ, such as rights.
	Keys    []string       `json:"keys,omitempty"`
	Streams *StreamChanges `json:"streams,omitempty"`
	Names   *NameChanges   `json:"names,omitempty"`
}

// ConfigError is a mistake in a configuration.
type ConfigError struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Key     string `json:"key,omitempty"`
	Problem string `json:"problem"`
}

// What becomes of a listener or an authority.
const (
	ChangeAdded   = "added"
	ChangeRemoved = "removed"
	ChangeChanged = "changed"
)

// ListenerChange is what becomes of a listener.
type ListenerChange struct {
	Address string `json:"address"`
	Change  string `json:"change"` // added, removed or changed
	// Keys are those that differ.
	Keys []string `json:"keys,omitempty"`
	// NewConnections says that the changes hold for new connections only, and that clients are asked to
	// make them (GOAWAY). Otherwise they hold for the next stream.
	NewConnections bool `json:"new_connections,omitempty"`
	// Streams is how many clients' streams are open.
	Streams int `json:"streams"`
}

// AuthorityChange is what becomes of an authority.
type AuthorityChange struct {
	Authority string   `json:"authority"`
	Change    string   `json:"change"` // added, removed or changed
	Keys      []string `json:"keys,omitempty"`
	// NewStreams says that the streams to its control planes are opened anew, or its directory is.
	NewStreams bool `json:"new_streams,omitempty"`
}

// StreamChanges are the clients' streams, and which of them would end.
type StreamChanges struct {
	Open int `json:"open"`
	// EndWithListener is how many would end because their listeners are gone; EndNotAdmitted, because the
	// listener does not admit the client any more.
	EndWithListener int `json:"end_with_listener"`
	EndNotAdmitted  int `json:"end_not_admitted"`
}

// planChanges returns what a configuration would change, and the generation that it would be, of which
// only the router and the rights can be used. What it opens is closed again.
func (r *Relay) planChanges(ctx context.Context, name string, text []byte) (_ *Changes, _ *nameCheck, err error) {
	r.reloading.Lock() // parse, too, is done one at a time
	defer r.reloading.Unlock()
	if r.ended {
		return nil, nil, ErrShuttingDown
	}
	before := r.now()
	changes := &Changes{Running: before.cfg.Hash()}
	cfg, err := r.checks.parse(name, text)
	if err != nil {
		changes.Errors = errorsOf(err)
		return changes, nil, nil
	}
	changes.Checked = cfg.Hash()
	for _, w := range slices.Concat(cfg.Warnings(), cfg.FileWarnings()) {
		changes.Warnings = append(changes.Warnings, errorOf(w))
	}
	problem := r.checkNewStore(cfg, before)
	// Another store is not opened for this: it would be made, or set aside if it cannot be read.
	planned := *cfg
	planned.Store = before.cfg.Store
	p, err := r.plan(ctx, &planned)
	if err != nil || problem != nil {
		if err == nil {
			r.undo(p)
		}
		changes.Errors = slices.Concat(errorsOf(err), errorsOf(problem))
		return changes, nil, nil
	}
	defer r.undo(p)
	check := r.compareListeners(changes, p)
	check.before, check.after = before, p.generation
	changes.Authorities = compareAuthorities(before, p.generation, before.cfg.Store.Path != cfg.Store.Path)
	for _, key := range differingKeys(*before.cfg, *cfg) {
		if key != "listeners" && key != "authorities" {
			changes.Keys = append(changes.Keys, key)
		}
	}
	return changes, check, nil
}

// checkNewStore returns why the store of a configuration cannot be used.
func (r *Relay) checkNewStore(cfg *configs.Config, before *generation) error {
	switch {
	case cfg.Store.Path == "":
		return nil
	case before.store != nil && before.store.path == cfg.Store.Path: // it is open, so this opens nothing
		opened, _, err := r.planStore(cfg, before)
		opened.leave()
		return err
	}
	if _, err := os.Stat(filepath.Dir(cfg.Store.Path)); err != nil {
		return cfg.Errorf("store.path", "%w", err)
	}
	var key *store.Key
	if cfg.Store.KeyFile != "" {
		var err error
		if key, err = store.ReadKey(cfg.Store.KeyFile); err != nil {
			return cfg.Errorf("store.key_file", "%w", err)
		}
	}
	if _, _, err := store.Check(cfg.Store.Path, key, r.log); errors.Is(err, store.ErrInUse) {
		return cfg.Errorf("store", "%w", err)
	}
	return nil // one that cannot be read is set aside
}

// compareListeners notes what becomes of the listeners, and returns how their streams are then served.
func (r *Relay) compareListeners(changes *Changes, p *planned) *nameCheck {
	check := newNameCheck(p.listeners)
	streams := &StreamChanges{Open: r.server.Clients()}
	changes.Streams = streams
	for _, l := range p.listeners {
		c := ListenerChange{Address: l.listener.address, Streams: l.listener.door.Streams()}
		l.listener.mu.Lock()
		was := l.listener.config
		l.listener.mu.Unlock()
		switch {
		case l.isNew:
			c.Change = ChangeAdded
			c.Address = l.config.Address // another port, if that is 0
		default:
			c.Change, c.NewConnections = ChangeChanged, l.server != nil
			if c.Keys = differingKeys(*was, *l.config); len(c.Keys) == 0 && l.server == nil {
				continue
			}
		}
		changes.Listeners = append(changes.Listeners, c)
	}
	for _, l := range r.openListeners() {
		if _, stays := check.listeners[l.door]; stays {
			continue
		}
		n := l.door.Streams()
		streams.EndWithListener += n
		changes.Listeners = append(changes.Listeners, ListenerChange{Address: l.address, Change: ChangeRemoved, Streams: n})
	}
	return check
}

// compareAuthorities returns what becomes of authorities. otherStore says that there is another store.
func compareAuthorities(before, after *generation, otherStore bool) (changes []AuthorityChange) {
	of := func(g *generation) map[string]*configs.Authority {
		all := map[string]*configs.Authority{}
		for i := range g.cfg.Authorities {
			all[g.cfg.Authorities[i].Name] = &g.cfg.Authorities[i]
		}
		return all
	}
	was, is := of(before), of(after)
	for i := range after.cfg.Authorities {
		a := &after.cfg.Authorities[i]
		old := was[a.Name]
		if old == nil {
			changes = append(changes, AuthorityChange{Authority: a.Name, Change: ChangeAdded})
			continue
		}
		c := AuthorityChange{Authority: a.Name, Change: ChangeChanged, Keys: differingKeys(*old, *a)}
		c.NewStreams = before.origins[a.Name].print != after.origins[a.Name].print || otherStore && a.Directory == ""
		if len(c.Keys) > 0 || c.NewStreams {
			changes = append(changes, c)
		}
	}
	for i := range before.cfg.Authorities {
		if name := before.cfg.Authorities[i].Name; is[name] == nil {
			changes = append(changes, AuthorityChange{Authority: name, Change: ChangeRemoved})
		}
	}
	return changes
}

// differingKeys returns the keys of two parts of configurations, of the same type, whose values differ.
func differingKeys(a, b any) (keys []string) {
	was, is := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range was.NumField() {
		f := was.Type().Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if f.IsExported() && key != "" && key != "-" && configs.Fingerprint(was.Field(i).Interface()) != configs.Fingerprint(is.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// errorsOf returns the mistakes in an error.
func errorsOf(err error) (all []ConfigError) {
	var list configs.Errors
	var one configs.Error
	switch {
	case err == nil:
	case errors.As(err, &list):
		for _, e := range list {
			all = append(all, errorOf(e))
		}
	case errors.As(err, &one):
		all = append(all, errorOf(one))
	default:
		all = append(all, ConfigError{Problem: err.Error()})
	}
	return all
}

func errorOf(e configs.Error) ConfigError {
	return ConfigError{File: e.File, Line: e.Line, Column: e.Column, Key: e.Path, Problem: e.Err.Error()}
}

// String returns the mistake with its place, on one line.
func (e ConfigError) String() string {
	return configs.Error{File: e.File, Line: e.Line, Column: e.Column, Path: e.Key, Err: errors.New(e.Problem)}.Error()
}

// errBusy is the error of a question while another one is answered.
var errBusy = errors.New("another configuration is being checked")

// Check returns what a configuration would change, and changes nothing. name is for errors. It counts
// clients' names for a while at most.
func (r *Relay) Check(ctx context.Context, name string, text []byte) (*Changes, error) {
	if r.checks.parse == nil || r.files != nil {
		return nil, ErrBuiltIn
	}
	if !r.checks.one.TryLock() {
		return nil, errBusy
	}
	defer r.checks.one.Unlock()
	changes, check, err := r.planChanges(ctx, name, text)
	if err != nil || check == nil {
		return changes, err
	}
	ctx, cancel := context.WithTimeout(ctx, countFor)
	defer cancel()
	r.countNames(ctx, changes, check)
	return changes, nil
}

const (
	// maxDocument is how many bytes a configuration to check may have.
	maxDocument = 8 << 20
	// countFor is how long names are counted.
	countFor = 5 * time.Second
)

// documentName returns the name of a document for errors and the log.
func documentName(name string) string {
	if name == "" {
		return "configuration"
	}
	return loglines.Clip(name)
}
