package isolation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// finding is a violation that an attack revealed.
type finding struct {
	message string
	in      input
	got     response
}

func (w *world) describe(f finding) string {
	return fmt.Sprintf("%s\n  %s at %s sent:\n  %q\n  and got: %s", f.message, w.attackers[f.in.attacker].name, w.targets[f.in.target].name, f.in.raw, f.got)
}

// attack sends an input, and returns the response and its violation, if any.
func (w *world) attack(ctx context.Context, in input) (response, *finding) {
	got := w.perform(ctx, in, false)
	if errors.Is(got.err, errUnsent) {
		return got, nil
	}
	if leaked := w.canaries.inResponse(got); leaked != "" {
		return got, &finding{message: "leaked: " + leaked, in: in, got: got}
	}
	if leaked := w.hook.leak(); leaked != "" {
		return got, &finding{message: leaked, in: in, got: got}
	}
	if got.err == nil && hasTwin(in) {
		return got, w.compare(ctx, in, got)
	}
	return got, nil
}

// mustAttack sends an input without violations, and returns the response.
func (w *world) mustAttack(t *testing.T, in input) response {
	t.Helper()
	got, found := w.attack(t.Context(), in)
	if found != nil {
		t.Fatal(w.describe(*found))
	}
	return got
}

// hasTwin reports whether an input refers to bravo only, so that the response must be the same for
// absent. Without /clusters/, a token may select alpha, which other requests change. If an escape
// sequence includes the first letters of a name, the names differ in other text.
func hasTwin(in input) bool {
	line, _, _ := strings.Cut(in.raw, "\r\n")
	path, _, _ := strings.Cut(line, "?")
	return strings.Contains(path, "clusters") && (strings.Contains(path, "$B$") || strings.Contains(path, "$BPATH$")) &&
		!strings.Contains(line, "$A$") && !strings.Contains(line, "$APATH$") && !escapedName.MatchString(line)
}

// escapedName matches a name that starts within a percent-encoded octet (RFC 3986, section 2.1).
var escapedName = regexp.MustCompile(`%[0-9A-Fa-f]?\$B(PATH)?\$`)

// compare sends an input again for the missing tenant. A difference must be reproducible, because
// servers may be busy and times change.
func (w *world) compare(ctx context.Context, in input, got response) *finding {
	var missing response
	for range 4 {
		missing = w.perform(ctx, in, true)
		if w.canaries.inResponse(missing) != "" {
			return &finding{message: "leaked: canary in the response for the missing tenant", in: in, got: missing}
		}
		if missing.err != nil || w.normalized(got, false) == w.normalized(missing, true) {
			return nil
		}
		got = w.perform(ctx, in, false)
		if got.err != nil {
			return nil
		}
	}
	return &finding{message: fmt.Sprintf("existence disclosed: the response for the missing tenant is %s", missing), in: in, got: got}
}

// volatileHeaders are headers that differ between any two responses.
var volatileHeaders = []string{"Date", "Audit-Id", "Content-Length"}

// managedFieldsTime matches the time of a write in managedFields.
var managedFieldsTime = regexp.MustCompile(`"time":"[0-9-]+T[0-9:]+Z",?`)

// normalized returns a response with names replaced.
func (w *world) normalized(a response, twin bool) string {
	of, vars := w.bravo, w.vars
	if twin {
		of, vars = w.absent, w.twins
	}
	var out strings.Builder
	fmt.Fprintln(&out, a.code)
	names := make([]string, 0, len(a.header))
	for name := range a.header {
		if !slices.Contains(volatileHeaders, http.CanonicalHeaderKey(name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintln(&out, name, a.header[name])
	}
	out.Write(a.body)
	text := managedFieldsTime.ReplaceAllString(out.String(), "")
	for _, home := range []string{"HPATH", "H"} {
		if vars[home] != "" {
			text = strings.ReplaceAll(text, vars[home], home)
		}
	}
	return strings.NewReplacer(
		of.path, "PATH", of.name, "NAME", strings.ToUpper(of.name), "UPPER", strings.TrimPrefix(of.path, "root:"), "LAST",
	).Replace(text)
}
