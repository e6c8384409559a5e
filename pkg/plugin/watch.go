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
	// lookInterval is the time between two looks, and restful how many times longer than the
	// look itself it is at least: large trees are looked at less often.
	lookInterval = 2 * time.Second
	restful      = 10
	// emptied empties a terminal.
	emptied = "\x1b[H\x1b[2J"
)

// Watch shows something once, or whenever it has changed.
type Watch struct {
	// Watched is set to go on until the context ends.
	Watched bool
}

// AddFlags adds the flag.
func (w *Watch) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVarP(&w.Watched, "watch", "w", false, "show it again whenever it has changed, until Ctrl-C; looked at every 2 s, large trees less often")
}

// show shows what look returns. Only the first failure ends a watch: others pass, and are told.
func (w *Watch) show(ctx context.Context, out, errOut io.Writer, look func(context.Context) ([]byte, error)) error {
	shown, err := look(ctx)
	if err != nil {
		return err
	}
	paint := func() error {
		_, err := fmt.Fprintf(out, "%s", shown)
		return err
	}
	if !w.Watched {
		return paint()
	}
	if isTerminal(out) {
		paint = func() error {
			_, err := fmt.Fprintf(out, "%s%s", emptied, shown)
			return err
		}
	}
	told := ""
	for changed, pause := true, lookInterval; ctx.Err() == nil; {
		if changed {
			if err := paint(); err != nil {
				return err // nobody reads it any more
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		start := time.Now()
		next, err := look(ctx)
		pause = max(lookInterval, restful*time.Since(start))
		switch {
		case ctx.Err() != nil: // it was interrupted
		case err != nil:
			if err.Error() != told {
				_, _ = plaintext.Fprintf(errOut, "%s, trying again\n", oneLine(err.Error()))
			}
			told, changed = err.Error(), false
		default:
			changed = told != "" || !bytes.Equal(next, shown)
			shown, told = next, ""
		}
	}
	return nil
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// newTable aligns columns, as kubectl does.
func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 3, ' ', 0) }

// trimLines removes what only fills lines up.
func trimLines(text []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(text) {
		out.Write(bytes.TrimRight(line, " \n"))
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
