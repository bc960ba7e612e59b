package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// largeStore returns the content of a store whose records are a tree of several pages.
func largeStore(t *testing.T) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "db")
	s := open(t, path, (&fake{}).options())
	s.Note("cp", func(n *Notes) {
		for i := range 500 {
			name := fmt.Sprint("entry", i)
			n.Entry(entry(name), resource(name, "1"))
		}
	})
	closed(t, s)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, content
}

// Following a page that refers to itself would never end.
func TestACycleOfPagesIsFound(t *testing.T) {
	_, content := largeStore(t)
	damaged := 0
	for at := 0; at+pageHeader < len(content); at += os.Getpagesize() {
		if order.Uint16(content[at+8:]) != branchPage {
			continue
		}
		circle := append([]byte(nil), content...)
		order.PutUint64(circle[at+pageHeader+8:], order.Uint64(content[at:])) // its first child is itself
		if _, err := verify(strings.NewReader(string(circle)), int64(len(circle))); err != nil {
			damaged++
			if !strings.Contains(err.Error(), "used twice") {
				t.Errorf("the error is %v", err)
			}
		}
	}
	if damaged == 0 {
		t.Error("no circle was found")
	}
	if _, err := verify(strings.NewReader(string(content)), int64(len(content))); err != nil {
		t.Errorf("the good file: %v", err)
	}
}

// The store detects a lost record: otherwise it would take the record's set for complete.
func TestALostRecordIsDetected(t *testing.T) {
	path, _ := largeStore(t)
	db, err := bolt.Open(path, fileMode, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		c := tx.Bucket(recordsBucket).Cursor()
		c.First()
		return c.Delete()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Check(path, nil, (&fake{}).options().Log); err == nil || !strings.Contains(err.Error(), "records are missing") {
		t.Errorf("check says %v", err)
	}
}
