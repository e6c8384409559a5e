package answers

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

var (
	// unreadBytes bounds what is in memory of answers that wait for clients to read: each write that
	// waits keeps what it writes, which may be a whole list, and has no seat that would bound how
	// many there are. An answer that is longer than all of one user may be counts as long as that.
	unreadBytes = ledger.Bounds{Total: 512 << 20, User: 128 << 20, Own: 16 << 20}
	// compressed are how many answers at a time are compressed that are encoded as a whole: of such a
	// one only what is compressed already is seen to wait, and not what it keeps.
	compressed = ledger.Bounds{Total: 8, User: 2}
)

// unread bounds what is in memory of answers that are not read.
type unread struct {
	most              int64 // of one user
	bytes, compressed *ledger.Ledger
}

func newUnread(bounds ledger.Bounds) *unread {
	return &unread{most: bounds.User, bytes: ledger.New(bounds), compressed: ledger.New(compressed)}
}

// pause pauses the request of ctx, which waits for so many bytes to be read, until resume. It
// gives the answer up if that is too much.
func (u *unread) pause(ctx context.Context, g *guard, bytes int) (resume func()) {
	give, err := u.bytes.TakeFor(ctx, min(int64(bytes), u.most))
	if err != nil {
		g.giveUp()
		return func() {}
	}
	resumeSeat := request.Pause(ctx)
	return func() {
		give()
		resumeSeat() // which may wait
	}
}

// compress returns r without what has its answer compressed, if too many are, and what says that
// it has ended.
func (u *unread) compress(r *http.Request) (_ *http.Request, end func()) {
	if !isWhole(r) {
		return r, func() {}
	}
	if give, err := u.compressed.TakeFor(r.Context(), 1); err == nil {
		return r, give
	}
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	r.Header.Del("Accept-Encoding")
	return r, func() {}
}

// bounded returns the guard of a request, and false where what it waits for is not bounded: watches have bounds of
// their own, and the system has none.
func bounded(ctx context.Context) (*guard, bool) {
	g, ok := ctx.Value(guardKey{}).(*guard)
	return g, ok && !g.lasts() && !identity.IsExempt(ctx)
}

// isWhole reports whether the answer may be encoded as a whole and compressed. A list is encoded object by object
// only as plain JSON or protobuf, that is not indented for people.
func isWhole(r *http.Request) bool {
	if r.Header.Get("Accept-Encoding") == "" {
		return false
	}
	for clause := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		switch strings.TrimSpace(clause) {
		case "", "*/*", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf:
		default:
			return true
		}
	}
	return mayIndent(r)
}

// mayIndent reports whether apimachinery may indent JSON for people, by what it goes by.
func mayIndent(r *http.Request) bool {
	agent := r.UserAgent()
	return strings.Contains(r.URL.RawQuery, "pretty") ||
		strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
