package ring

import (
	"bytes"
	"fmt"
	"net/http"
	"text/tabwriter"
)

// ServeHTTP serves what the member knows as text, for people: mount it as /debug/ring.
func (r *Ring) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s := r.Status()
	owned, coming := r.Ranges()
	var page bytes.Buffer
	table := tabwriter.NewWriter(&page, 0, 0, 2, ' ', 0)
	line := func(cells string, values ...any) { fmt.Fprintf(table, cells+"\n", values...) }
	line("ring\t%s", r.config.Name)
	line("this member\t%s", s.ID)
	line("epoch\t%d, written by %s", s.Epoch, orNobody(s.Coordinator))
	line("waits\t%s", orNone(s.Waits))
	if s.LastError != nil {
		line("last error\t%v", s.LastError)
	}
	line("works on\t%s", orNone(owned.String()))
	line("loads\t%s", orNone(coming.String()))
	line("\nMEMBER\tWEIGHT\tSHARE\tSTATE")
	for _, m := range s.Members {
		line("%s\t%d\t%.1f %%\t%s", m.ID, m.Weight, 100*m.Share, m.State)
	}
	if len(s.Moves) > 0 {
		line("\nFROM\tTO\tSINCE EPOCH\tRANGE")
	}
	for _, m := range s.Moves {
		line("%s\t%s\t%d\t%016x to %016x", m.From, orNobody(m.To), m.Epoch, m.Range.First, m.Range.Last)
	}
	_ = table.Flush() // to memory
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(page.Bytes()) // a reader who goes away is told nothing
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func orNobody(id string) string {
	if id == "" {
		return "nobody"
	}
	return id
}
