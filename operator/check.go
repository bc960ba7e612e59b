package operator

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/xds-relay/xds-relay/internal/loglines"
)

// maxDocument is the maximum size of a configuration to check, in bytes.
const maxDocument = 8 << 20

// checkDocument answers an operator's request for what a configuration would change.
func (r *Observer) checkDocument(w http.ResponseWriter, req *http.Request, document []byte) {
	name := documentName(req.URL.Query().Get("name"))
	changes, err := r.Process.Check(req.Context(), name, document)
	outcome := "it can be loaded"
	if err != nil || len(changes.Errors) > 0 {
		outcome = "it cannot be loaded"
	}
	r.Log.Info("audit: an operator wanted to know what a configuration would change", "operator", Caller(req), "peer", req.RemoteAddr, "name", name, "outcome", outcome)
	switch {
	case errors.Is(err, ErrBuiltIn):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, ErrBusy):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case len(changes.Errors) > 0:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(changes) // the operator's connection has gone
	default:
		writeJSON(w, changes)
	}
}

// ErrBusy is the error of a check while another one runs.
var ErrBusy = errors.New("another configuration is being checked")

// documentName returns the name of a document for errors and logs.
func documentName(name string) string {
	if name == "" {
		return "configuration"
	}
	return loglines.Clip(name)
}
