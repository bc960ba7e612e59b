package configs

import (
	"strings"
	"testing"
)

// TestTablesOfPagesHaveTheDefaults: the tables of the pages about failover and limits have a
// row for each key, with its default.
func TestTablesOfPagesHaveTheDefaults(t *testing.T) {
	keys := allKeys(t)
	for _, tt := range []struct{ page, prefix, all string }{
		{"failover", "authorities[].failover.", ""},
		{"limits", "listeners[].", "limits."},
	} {
		_, table, _ := strings.Cut(readPage(t, tt.page), "| key | default | ")
		table, _, _ = strings.Cut(table, "\n\n")
		rows := map[string]string{}
		for row := range strings.SplitSeq(table, "\n") {
			if cells := strings.Split(row, "|"); len(cells) > 3 {
				rows[tt.prefix+strings.Trim(cells[1], " `")] = strings.ReplaceAll(strings.TrimSpace(cells[2]), "`", "")
			}
		}
		for _, k := range keys {
			want := k.value
			if absent, ok := k.field.Tag.Lookup("absent"); ok {
				want = absent
			}
			got, ok := rows[k.path]
			switch {
			case !ok && strings.HasPrefix(k.path, tt.prefix+tt.all) && !k.isMap():
				t.Errorf("docs/%s.md has no row for %s", tt.page, k.path)
			case ok && got != want:
				t.Errorf("docs/%s.md: the default of %s is %q, want %q", tt.page, k.path, got, want)
			}
			delete(rows, k.path)
		}
		for path := range rows {
			if !strings.HasSuffix(path, "---") {
				t.Errorf("docs/%s.md has a row for %s, which is no key", tt.page, path)
			}
		}
	}
}
