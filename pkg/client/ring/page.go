package ring

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"text/tabwriter"
)

// ServeHTTP serves the status of the ring as text. It is usually mounted at /debug/ring.
func (r *Ring) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s := r.Status()
	owned, coming := r.Ranges()
	var page bytes.Buffer
	table := tabwriter.NewWriter(&page, 0, 0, 2, ' ', 0)
	line := func(cells string, values ...any) { fmt.Fprintf(table, cells+"\n", values...) }
	line("ring\t%s", r.config.Name)
	line("this member\t%s", s.ID)
	line("epoch\t%d, written by %s", s.Epoch, cmp.Or(s.Coordinator, "none"))
	line("waits\t%s", cmp.Or(s.Waits, "none"))
	if s.LastError != nil {
		line("last error\t%v", s.LastError)
	}
	line("works on\t%s", cmp.Or(owned.String(), "none"))
	line("loads\t%s", cmp.Or(coming.String(), "none"))
	line("\nMEMBER\tWEIGHT\tSHARE\tSTATE")
	for _, m := range s.Members {
		line("%s\t%d\t%.1f %%\t%s", m.ID, m.Weight, 100*m.Share, m.State)
	}
	if len(s.Moves) > 0 {
		line("\nFROM\tTO\tSINCE EPOCH\tRANGE")
	}
	for _, m := range s.Moves {
		line("%s\t%s\t%d\t%016x to %016x", m.From, cmp.Or(m.To, "none"), m.Epoch, m.Range.First, m.Range.Last)
	}
	_ = table.Flush()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(page.Bytes()) // the client may have disconnected
}
