package relay

// Reloads, by the admin listener and from the file.

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/xds-relay/xds-relay/admin"
)

// ErrBuiltIn is the error of a reload if the relay runs without a configuration file.
var ErrBuiltIn = errors.New("the relay was started without a configuration file, so there is nothing to load")

// Load reads the configuration file and replaces the running configuration: see Reload. by is the requester, for the
// log.
func (r *Relay) Load(ctx context.Context, by string) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	if r.load == nil {
		r.log.Warn("the configuration was not reloaded", "by", by, "reason", ErrBuiltIn)
		return ErrBuiltIn
	}
	defer r.notifyReload()()
	// Hold the lock while reading, so that of several reloads the last one has the newest file.
	cfg, err := r.load()
	if err != nil {
		r.noteFailure(err, by)
		return err
	}
	return r.reload(ctx, cfg, by)
}

// ConfigStatus identifies the running configuration, as /config shows it.
type ConfigStatus struct {
	// Hash identifies the content: it is the same for all relays with this configuration.
	Hash string `json:"hash"`
	// Loaded is when it was loaded.
	Loaded time.Time `json:"loaded"`
	// Failures counts the failed reloads since the start. Problem says what is wrong with the newest configuration if
	// that could not be loaded.
	Failures uint64 `json:"failures"`
	Problem  string `json:"problem,omitempty"`
}

func (r *Relay) configStatus() ConfigStatus {
	r.reloads.mu.Lock()
	defer r.reloads.mu.Unlock()
	return ConfigStatus{Hash: r.Hash(), Loaded: r.reloads.loaded, Failures: r.reloads.failures, Problem: r.reloads.problem}
}

// observeReloads adds reloads to the admin listener.
func (r *Relay) observeReloads() {
	r.admin.JSON("/config", "which configuration runs, and what is wrong with a newer one", func() any { return r.configStatus() })
	r.admin.Action("/reload", http.HandlerFunc(r.reloadNow))
	r.admin.Upload("/check", maxDocument, r.checkDocument)
}

// byOperator is the requester of a reload over the admin listener.
const byOperator = "POST /reload"

// reloadNow answers an operator's request for a reload, and writes an audit line.
func (r *Relay) reloadNow(w http.ResponseWriter, req *http.Request) {
	before := r.Hash()
	// Do not use the request's context: a reload that has begun must be finished.
	err := r.Load(context.WithoutCancel(req.Context()), byOperator)
	now := r.configStatus()
	outcome := "reloaded"
	if err != nil {
		outcome = "failed"
	}
	changed := ""
	if err == nil {
		r.reloads.mu.Lock()
		changed = r.reloads.changed
		r.reloads.mu.Unlock()
	}
	if log, ok := r.lineOfReload(&r.reloads.audits, before == now.Hash); ok {
		log.Info("audit: an operator wanted a reload", "operator", operatorOf(req), "peer", req.RemoteAddr, "outcome", outcome, "before", before, "config", now.Hash, "changes", changed, "event", "reload")
	}
	switch {
	case errors.Is(err, ErrBuiltIn):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, ErrShuttingDown):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	default:
		writeJSON(w, now)
	}
}

// reloadInstruments returns the metrics of reloads.
func (r *Relay) reloadInstruments() []instrument {
	return []instrument{
		{r.metrics.Gauge, "xds_relay.config.info", "The running configuration, identified by its hash. The value is always 1.", func() []admin.Sample {
			return []admin.Sample{{Value: 1, Labels: []attribute.KeyValue{attribute.String("hash", r.Hash())}}}
		}},
		{r.metrics.Gauge, "xds_relay.config.last_reload_success_timestamp_seconds", "When the running configuration was loaded, as a Unix timestamp in seconds.", func() []admin.Sample {
			return []admin.Sample{{Value: r.configStatus().Loaded.Unix()}}
		}},
		{r.metrics.Gauge, "xds_relay.config.last_reload_successful", "0 if the last reload failed, otherwise 1.", func() []admin.Sample {
			if r.configStatus().Problem != "" {
				return []admin.Sample{{Value: 0}}
			}
			return []admin.Sample{{Value: 1}}
		}},
		{r.metrics.Counter, "xds_relay.config.reload_failures", "Failed reloads. The running configuration stays in use.", one(func() uint64 { return r.configStatus().Failures })},
	}
}
