package isolation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// finding is what an attack brought to light.
type finding struct {
	what string
	in   input
	got  answer
}

func (w *world) describe(f finding) string {
	return fmt.Sprintf("%s\n  %s at %s sent:\n  %q\n  and got: %s", f.what, w.whos[f.in.who].name, w.targets[f.in.target].name, f.in.raw, f.got)
}

// attack sends an input, and says what is wrong with the answer, if anything.
func (w *world) attack(ctx context.Context, in input) (answer, *finding) {
	got := w.perform(ctx, in, false)
	if errors.Is(got.err, errUnsent) {
		return got, nil
	}
	if what := w.canaries.inAnswer(got); what != "" {
		return got, &finding{what: "crossed: " + what, in: in, got: got}
	}
	if what := w.hook.caught(); what != "" {
		return got, &finding{what: what, in: in, got: got}
	}
	if got.err == nil && hasTwin(in) {
		return got, w.compare(ctx, in, got)
	}
	return got, nil
}

// hasTwin reports whether an input is about bravo and nothing else, so that its
// answer must be the same if bravo did not exist. Without /clusters/, a token may
// lead to alpha, where others are at work. Where an escape takes the first letters
// of a name along, the two names are other text, and may well be answered otherwise.
func hasTwin(in input) bool {
	line, _, _ := strings.Cut(in.raw, "\r\n")
	path, _, _ := strings.Cut(line, "?")
	return strings.Contains(path, "clusters") && (strings.Contains(path, "$B$") || strings.Contains(path, "$BPATH$")) &&
		!strings.Contains(line, "$A$") && !strings.Contains(line, "$APATH$") && !escapedName.MatchString(line)
}

// escapedName is a name that begins within a percent-encoded octet (RFC 3986, section 2.1).
var escapedName = regexp.MustCompile(`%[0-9A-Fa-f]?\$B(PATH)?\$`)

// compare sends an input once more about what does not exist. What differs, must
// differ again and again: servers may be busy, and times pass.
func (w *world) compare(ctx context.Context, in input, got answer) *finding {
	var missing answer
	for range 4 {
		missing = w.perform(ctx, in, true)
		if w.canaries.inAnswer(missing) != "" {
			return &finding{what: "crossed: the twin got a canary", in: in, got: missing}
		}
		if missing.err != nil || w.visible(got, false) == w.visible(missing, true) {
			return nil
		}
		got = w.perform(ctx, in, false)
		if got.err != nil {
			return nil
		}
	}
	return &finding{what: fmt.Sprintf("told existing from missing: for what does not exist the answer is %s", missing), in: in, got: got}
}

// passing are headers that differ between any two answers.
var passing = []string{"Date", "Audit-Id", "Content-Length"}

// written is the second in which something was written, by its managedFields: it is another one in the next answer.
var written = regexp.MustCompile(`"time":"[0-9-]+T[0-9:]+Z",?`)

// visible is what a client sees of an answer, with names replaced.
func (w *world) visible(a answer, twin bool) string {
	of, vars := w.bravo, w.vars
	if twin {
		of, vars = w.absent, w.twins
	}
	var out strings.Builder
	fmt.Fprintln(&out, a.code)
	names := make([]string, 0, len(a.header))
	for name := range a.header {
		if !slices.Contains(passing, http.CanonicalHeaderKey(name)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintln(&out, name, a.header[name])
	}
	out.Write(a.body)
	text := written.ReplaceAllString(out.String(), "")
	for _, home := range []string{"HPATH", "H"} {
		if vars[home] != "" {
			text = strings.ReplaceAll(text, vars[home], home)
		}
	}
	return strings.NewReplacer(
		of.path, "PATH", of.name, "NAME", strings.ToUpper(of.name), "UPPER", strings.TrimPrefix(of.path, "root:"), "LAST",
	).Replace(text)
}
