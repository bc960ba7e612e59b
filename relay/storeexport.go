package relay

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/operator"
)

// exportHeaders say with an export how many records it has, and how many the store could not read.
const (
	ExportedHeader   = "X-Xds-Relay-Exported"
	UnreadableHeader = "X-Xds-Relay-Unreadable"
)

// exportWithin bounds how long an operator may take to read an export.
const exportWithin = 10 * time.Minute

// observeStoreExport adds the backup of a store in use to the admin listener.
func (r *Relay) observeStoreExport() {
	var busy sync.Mutex // one copy of the store at a time
	r.admin.Action("/store/export", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !busy.TryLock() {
			http.Error(w, "another export runs", http.StatusServiceUnavailable)
			return
		}
		defer busy.Unlock()
		r.exportStore(w, req)
	}))
}

// exportStore sends an export of the store. The relay copies the records to a file first: a transaction must not wait for
// somebody who reads slowly, as it would stop the store from growing.
func (r *Relay) exportStore(w http.ResponseWriter, req *http.Request) {
	s := r.now().store
	if s == nil || !s.useAgain() {
		http.Error(w, "the relay has no store (store.path)", http.StatusNotFound)
		return
	}
	defer s.leave()
	file, written, unreadable, err := copyOf(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer file.Close()
	r.log.Info("audit: an operator exports the store", "operator", operator.Caller(req), "peer", req.RemoteAddr, "path", s.path, "records", written, "unreadable", unreadable)
	w.Header().Set("Content-Type", "application/jsonl")
	w.Header().Set(ExportedHeader, strconv.Itoa(written))
	w.Header().Set(UnreadableHeader, strconv.Itoa(unreadable))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(exportWithin)) // a server without deadlines waits
	_, _ = io.Copy(w, file)                                                          // the operator has gone
}

// copyOf returns an export in a file without a name, next to the store.
func copyOf(s *sharedStore) (file *os.File, written, unreadable int, err error) {
	if file, err = os.CreateTemp(filepath.Dir(s.path), ".export-*"); err != nil {
		return nil, 0, 0, fmt.Errorf("a copy of the store cannot be made: %w", err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	if err = os.Remove(file.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, 0, err
	}
	if written, unreadable, err = s.Export(file); err != nil {
		return nil, 0, 0, fmt.Errorf("the store cannot be copied: %w", err)
	}
	_, err = file.Seek(0, io.SeekStart)
	return file, written, unreadable, err
}
