package relay

import (
	"bytes"
	"html/template"
	"net/http"

	"github.com/xds-relay/xds-relay/rollout/gate"
)

// rolloutPage writes the rollouts as a page with buttons. It has no script, and no other page can
// frame it.
func (r *Relay) rolloutPage(w http.ResponseWriter, _ *http.Request) {
	var page struct {
		Configured bool
		Rollouts   []RolloutStatus
	}
	if page.Configured = len(r.now().rollouts) > 0; page.Configured {
		page.Rollouts = r.rolloutViews(gate.Which{AnyPartition: true})
	}
	var b bytes.Buffer
	if err := rolloutTemplate.Execute(&b, page); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(b.Bytes()) // the operator's connection has gone
}

// button is a button of the page.
type button struct{ Action, Authority, Partition string }

func newButton(action string, of RolloutStatus) button {
	return button{action, of.Authority, of.Partition}
}

var rolloutTemplate = template.Must(template.New("rollouts").Funcs(template.FuncMap{"button": newButton}).Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>xds-relay: rollouts</title>
<style>
body { font: 15px/1.4 sans-serif; margin: 2em; max-width: 70em }
table { border-collapse: collapse; margin: .5em 0 }
th, td { text-align: left; padding: .15em 1em .15em 0; vertical-align: top }
form { display: inline }
.stopped, .waits { color: #a00 }
</style>
</head>
<body>
<h1>Rollouts</h1>
{{- if not .Configured}}
<p>No authority has a rollout.</p>
{{- else if not .Rollouts}}
<p>No client of an authority with a rollout has come yet.</p>
{{- end}}
{{- range .Rollouts}}
<section>
<h2>{{.Authority}}{{with .Partition}}, partition {{.}}{{end}}</h2>
<p class="{{.Phase}}">{{.Phase}}{{if .Frozen}}, frozen{{end}}
{{- if eq .Phase "rolling"}}, step {{.Step}} of {{.Steps}}{{with .Ends}}, whose soak ends at {{.Format "15:04:05"}}{{end}}{{end}}
{{- with .Reason}}: {{.}}{{end}}</p>
<p>
{{- template "button" (button "approve" .)}}
{{- template "button" (button "reject" .)}}
{{- if .Frozen}}{{template "button" (button "thaw" .)}}{{else}}{{template "button" (button "freeze" .)}}{{end}}
</p>
{{- if .Cohorts}}
<table>
<tr><th>cohort</th><th>clients</th><th>were sent the change</th><th>acknowledged it</th></tr>
{{- range .Cohorts}}
<tr><td>{{.Name}}</td><td>{{.Clients}}</td><td>{{.Shown}}</td><td>{{.Taken}}</td></tr>
{{- end}}
</table>
{{- end}}
{{- if .Rejections}}
<h3>Rejected by</h3>
<table>{{range .Rejections}}
<tr><td>{{.Client}}</td><td>{{.Words}}</td></tr>{{end}}
</table>
{{- end}}
{{- if .PassedOver}}
<h3>Passed over</h3>
<p>They have stopped several rollouts alone. Where other clients accept a change, their rejections do not count. {{template "button" (button "trust" .)}}</p>
<ul>{{range .PassedOver}}<li>{{.}}</li>{{end}}</ul>
{{- end}}
{{- if .Deaths}}
<h3>Died</h3>
<ul>{{range .Deaths}}<li>{{.}}</li>{{end}}</ul>
{{- end}}
{{- if .Changes}}
<h3>{{.Total}} not accepted</h3>
<table>{{range .Changes}}
<tr><td>{{.What}}</td><td>{{.Type}}</td><td>{{.Name}}</td><td class="waits">{{.Waits}}</td></tr>{{end}}
</table>
{{- end}}
</section>
{{- end}}
</body>
</html>
{{- define "button"}}
<form method="post" action="/rollout/{{.Action}}">
<input type="hidden" name="authority" value="{{.Authority}}">
<input type="hidden" name="partition" value="{{.Partition}}">
<button>{{.Action}}</button>
</form>
{{- end}}
`))
