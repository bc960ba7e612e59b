// Package page is the operator's page: what the admin listener shows, as HTML for people and the same as JSON for
// commands. It knows how things look, and not where they come from: who calls [Register] reads them.
//
// A page is made by the server, from templates in the binary. It asks no other host for anything, and works
// without the script, which only keeps it up to date (live.go).
package page

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/xds-relay/xds-relay/admin"
)

//go:embed templates
var templates embed.FS

//go:embed static
var static embed.FS

// View is one page, and one JSON document with the same content.
type View struct {
	// Name is the template's, the last element of the page's path and of that of the document: /ui/clients and
	// /api/clients.
	Name string
	// Title is what the page is called. The parts of it that others choose come from the template.
	Title string
	// About says what the JSON document has.
	About string
	// Path is that of the page, if it is another one, and has no document then.
	Path string
	// Part is the entry of the menu that the page belongs to: the Name of another view.
	Part string
	// Read returns what the view shows, for the query of a URL. An error is an [Error], or a failure.
	Read func(q url.Values) (any, error)
}

func (v *View) path() string {
	switch {
	case v.Path != "":
		return v.Path
	case v.Name == Front:
		return "/ui"
	}
	return "/ui/" + v.Name
}

// Front is the name of the first page.
const Front = "status"

// Error is why there is nothing to show.
type Error struct {
	Status int // of HTTP
	Text   string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Missing returns an error for what does not exist.
func Missing(text string) error { return &Error{http.StatusNotFound, text} }

// Unclear returns an error for a query that does not say what is wanted.
func Unclear(text string) error { return &Error{http.StatusUnprocessableEntity, text} }

// site has all pages.
type site struct {
	menu  []entry
	views []*sight
	live  live
}

// sight is a view of a site.
type sight struct {
	View
	site *site
}

// parsed has the templates of all pages, by the names of their views. They are parsed for the first page that
// somebody opens.
var parsed = sync.OnceValues(func() (map[string]*template.Template, error) {
	layout, err := template.New("layout.html").Funcs(functions).ParseFS(templates, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}
	files, err := fs.Glob(templates, "templates/*.html")
	if err != nil {
		return nil, err
	}
	all := map[string]*template.Template{}
	for _, file := range files {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		of, err := layout.Clone()
		if err != nil {
			return nil, err
		}
		if all[name], err = of.ParseFS(templates, file); err != nil {
			return nil, err
		}
	}
	return all, nil
})

// Register adds the pages and documents to the admin listener, before it serves. menu has the names of the views
// in the page's menu.
func Register(s *admin.Server, views []View, menu []string) {
	site := &site{live: live{every: liveEvery}}
	for _, name := range menu {
		for i := range views {
			if v := &views[i]; v.Name == name {
				site.menu = append(site.menu, entry{Name: name, Title: v.Title, Path: v.path()})
			}
		}
	}
	for _, v := range views {
		of := &sight{View: v, site: site}
		site.views = append(site.views, of)
		s.Hidden(v.path(), site.html(of))
		if v.Path == "" {
			s.Page("/api/"+v.Name, v.About, site.json(of))
		}
		if v.Name == Front {
			s.Front(site.html(of))
		}
	}
	files, _ := fs.Sub(static, "static") // it is there
	serve := http.StripPrefix("/ui/static/", http.FileServerFS(files))
	s.Hidden("/ui/static/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		w.Header().Set("Cache-Control", "max-age=3600") // the URL has a hash of the content
		serve.ServeHTTP(w, r)
	}))
	s.Hidden("/ui/live", http.HandlerFunc(site.serveLive))
}

// entry is an entry of the menu.
type entry struct{ Name, Title, Path string }

// sheet is what the layout shows.
type sheet struct {
	View    *View
	Menu    []entry
	Part    string // of the menu
	Content any
	Query   url.Values
	// Again is the URL of the page itself.
	Again string
}

// policy is the Content-Security-Policy of all pages: nothing comes from elsewhere, no page is in another one's
// frame, and no text of a page is a script or a style.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

func protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	// With no-referrer, browsers would send forms with the Origin null, which the guard refuses.
	h.Set("Referrer-Policy", "same-origin")
}

// html serves a view as a page.
func (s *site) html(v *sight) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		text, err := v.render(r.URL.Query())
		if known := (*Error)(nil); errors.As(err, &known) {
			status = known.Status
			text, err = s.explain(v, r.URL.Query(), known)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		protect(h)
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_, _ = w.Write(text) // the operator's connection has gone
	})
}

// render returns a page.
func (v *sight) render(q url.Values) ([]byte, error) {
	content, err := v.Read(q)
	if err != nil {
		return nil, err
	}
	return v.fill(q, content)
}

func (v *sight) fill(q url.Values, content any) ([]byte, error) {
	again := v.path()
	if len(q) > 0 {
		again += "?" + q.Encode()
	}
	part := v.Part
	if part == "" {
		part = v.Name
	}
	pages, err := parsed()
	if err != nil {
		return nil, err
	}
	t := pages[v.Name]
	if t == nil {
		return nil, fmt.Errorf("the page %q has no template", v.Name)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, sheet{View: &v.View, Menu: v.site.menu, Part: part, Content: content, Query: q, Again: again}); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// explain returns the page that says why there is no other.
func (s *site) explain(v *sight, q url.Values, why *Error) ([]byte, error) {
	of := sight{View: View{Name: "error", Title: "Not found", Part: v.Part}, site: s}
	if of.Part == "" {
		of.Part = v.Name
	}
	return of.fill(q, why)
}

// json serves a view as a document.
func (s *site) json(v *sight) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := v.Read(r.URL.Query())
		var known *Error
		switch {
		case errors.As(err, &known):
			http.Error(w, known.Text, known.Status)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(content) // the operator's connection has gone
	})
}

// viewAt returns the view of a page's path, nil if there is none.
func (s *site) viewAt(path string) *sight {
	if path == "/" {
		path = "/ui"
	}
	for _, v := range s.views {
		if v.path() == strings.TrimSuffix(path, "/") {
			return v
		}
	}
	return nil
}
