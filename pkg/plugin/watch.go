package plugin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/shardplane/shardplane/pkg/plaintext"
)

const (
	// updateInterval is the minimum interval of updates, which is at least restFactor times the duration of an update.
	updateInterval = 2 * time.Second
	restFactor     = 10
	// clearScreen clears a terminal.
	clearScreen = "\x1b[H\x1b[2J"
)

// Watch shows an output once, or after each change.
type Watch struct {
	// Watched repeats the output until the context ends.
	Watched bool
}

// AddFlags adds the flag.
func (w *Watch) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&w.Watched, "watch", "w", false, "update the output after each change, at most every 2 s, until Ctrl-C")
}

// show shows the result of update. After the first success, it reports errors and retries.
func (w *Watch) show(ctx context.Context, out, errOut io.Writer, update func(context.Context) ([]byte, error)) error {
	shown, err := update(ctx)
	if err != nil {
		return err
	}
	before := ""
	if w.Watched && isTerminal(out) {
		before = clearScreen
	}
	paint := func() error {
		_, err := fmt.Fprintf(out, "%s%s", before, shown)
		return err
	}
	if !w.Watched {
		return paint()
	}
	failure := ""
	for changed, pause := true, updateInterval; ctx.Err() == nil; {
		if changed {
			if err := paint(); err != nil {
				return err // the output was closed
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		start := time.Now()
		next, err := update(ctx)
		pause = max(updateInterval, restFactor*time.Since(start))
		switch {
		case ctx.Err() != nil: // interrupted
		case err != nil:
			if err.Error() != failure {
				_, _ = plaintext.Fprintf(errOut, "%s, retrying\n", oneLine(err.Error()))
			}
			failure, changed = err.Error(), false
		default:
			changed = failure != "" || !bytes.Equal(next, shown)
			shown, failure = next, ""
		}
	}
	return nil
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// newTable returns a writer that aligns columns like kubectl.
func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 3, ' ', 0) }

func trimLines(text []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(text) {
		out.Write(bytes.TrimRight(line, " \n"))
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
