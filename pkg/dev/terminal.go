package dev

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/plaintext"
	"github.com/shardplane/shardplane/pkg/request"
)

// terminal prints events for the user, in colors on a real terminal, and otherwise as plain text.
type terminal struct {
	colour     bool
	width      int    // length of the longest component name
	currentDir string // paths below it are shown relative to it

	mu  sync.Mutex
	out io.Writer
}

func newTerminal(out io.Writer, components []Command) *terminal {
	t := &terminal{out: out, colour: isTerminal(out)}
	for _, c := range components {
		t.width = max(t.width, len(c.Name))
	}
	t.currentDir, _ = os.Getwd()
	return t
}

// isTerminal reports whether out supports colors.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

type colour string

const (
	bold   colour = "1"
	dim    colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
)

func (t *terminal) paint(c colour, s string) string {
	if !t.colour {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// write writes a block of text. Errors are ignored, because the cluster must continue without the terminal.
func (t *terminal) write(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.out, text)
}

// name returns the name of a component, padded to a column.
func (t *terminal) name(name string) string { return fmt.Sprintf("%-*s", t.width, name) }

func (t *terminal) header(o CompletedOptions, p *prepared) {
	shards := "1 shard"
	if o.Shards != 1 {
		shards = fmt.Sprintf("%d shards", o.Shards)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s with %s in %s\n", t.paint(bold, "Shardplane"), shards, o.WorkDir)
	if p.certs.store.Made > 0 {
		fmt.Fprintf(&b, "New certificates are in %s\n", t.path(layout(o.WorkDir).shared("")))
	}
	for _, note := range p.notes {
		fmt.Fprintf(&b, "%s %s\n", t.paint(yellow, "Note:"), note)
	}
	t.write(b.String() + "\n")
}

func (t *terminal) event(c Command, e supervise.Event, lastMessage string) {
	var text string
	switch e.Kind {
	case supervise.Starting:
		text = "starting on " + c.URL
		if e.Restart {
			text = "restarting"
		}
	case supervise.Waiting:
		text = fmt.Sprintf("%s: %s (log: %s)", t.paint(yellow, "not ready yet"), plaintext.Escape(oneLine(e.Err.Error())), t.path(c.logFile))
	case supervise.Ready:
		text = fmt.Sprintf("%s after %s", t.paint(green, "ready"), seconds(e.Took))
	case supervise.Exited:
		text = fmt.Sprintf("%s (%s), restarting in %s (log: %s)",
			t.paint(red, "exited"), plaintext.Escape(oneLine(e.Err.Error())), seconds(e.Delay), t.path(c.logFile))
		if lastMessage != "" {
			text += "\n  " + t.name("") + "  " + t.paint(dim, plaintext.Escape(abbreviate(reason(lastMessage), 300)))
		}
	case supervise.Stopping:
		return // Stopped or Killed follows
	case supervise.Stopped:
		text = "stopped"
	case supervise.Killed:
		text = t.paint(red, "killed")
	}
	t.write("  " + t.name(c.Name) + "  " + text + "\n")
}

func (t *terminal) ready(o CompletedOptions, took time.Duration) {
	files := layout(o.WorkDir)
	config := files.shared("admin.kubeconfig")
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s after %s. The kubeconfig is %s\n", t.paint(green, "Ready"), seconds(took), t.path(config))
	fmt.Fprintf(&b, "\nIn another terminal:\n\n  %s\n\nand then, for example:\n\n", t.paint(bold, "export KUBECONFIG="+quote(config)))
	for _, command := range []string{
		`echo '{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"demo"}}' | kubectl create -f -`,
		"kubectl get workspaces",
		"kubectl --server " + baseURL(o.FrontProxyPort) + request.ClusterPath("root:demo") + " get namespaces",
	} {
		fmt.Fprintf(&b, "  %s\n", t.paint(bold, command))
	}
	fmt.Fprintf(&b, "\nCtrl-C stops all components and keeps the data. Logs: %s*/*.log\n", t.path(files.shared("")))
	fmt.Fprintf(&b, "Webhooks may have addresses in %s, which servers reject by default.\n", strings.ReplaceAll(loopbackCIDRs, ",", " and "))
	fmt.Fprintf(&b, "Profiles of a shard: kubectl --kubeconfig %s --context shard-base get --raw /debug/pprof/heap > heap.pprof\n\n",
		quote(t.path(files.shard(0, "admin.kubeconfig"))))
	t.write(b.String())
}

// note prints a note that belongs to no component.
func (t *terminal) note(text string) {
	t.write(t.paint(yellow, "Note:") + " " + plaintext.Escape(oneLine(text)) + "\n")
}

func (t *terminal) log(name, line string) {
	t.write(t.paint(dim, t.name(name)+" |") + " " + plaintext.Escape(line) + "\n")
}

// path returns a path for messages, relative to the current directory if it is below it.
func (t *terminal) path(path string) string {
	if rel, err := filepath.Rel(t.currentDir, path); t.currentDir != "" && err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}

func seconds(d time.Duration) string {
	s := d.Seconds()
	if s >= 10 {
		return fmt.Sprintf("%.0f s", s)
	}
	return fmt.Sprintf("%.1f s", math.Ceil(s*10)/10)
}

// quote makes a path safe for a POSIX shell.
func quote(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool {
		return !strings.ContainsRune("/._-+:@%", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}

func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
