package answers

import (
	"context"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
)

var (
	// unreadBytes bounds what is in memory of answers that wait for clients to read: each write that
	// waits keeps what it writes, which may be a whole list, and has no seat that would bound how
	// many there are. An answer that is longer than all of one user may be counts as long as that.
	unreadBytes = ledger.Bounds{Total: 512 << 20, User: 128 << 20, Own: 16 << 20}
	// forwarded bounds what is in memory of answers of other servers, which come ahead of what clients read.
	forwarded = ledger.Bounds{Total: 1 << 30, User: 256 << 20, Own: 16 << 20}
	// compressed are how many answers at a time are compressed that are encoded as a whole: of such a
	// one only what is compressed already is seen to wait, and not what it keeps.
	compressed = ledger.Bounds{Total: 8, User: 2}
)

// forwardedAfter is how long a write of a forwarded answer takes before that counts: many clients read through
// slow lines, and none of them has a seat here.
const forwardedAfter = time.Second

// WithForwarded returns next for requests whose answers come from other servers, watches as well: as long as a
// client does not read, so many bytes of each are in memory. Where that is too much of one user, or in all, the
// answer is given up.
func WithForwarded(next http.Handler, ahead int) http.Handler {
	return withForwarded(next, newUnread(forwarded), ahead)
}

func withForwarded(next http.Handler, unread *unread, ahead int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		g, ok := ctx.Value(guardKey{}).(*guard)
		if !ok || identity.IsExempt(ctx) {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&pausingWriter{ResponseWriter: w, after: forwardedAfter, pause: func(bytes int) (resume func()) {
			return unread.pause(ctx, g, max(bytes, ahead))
		}}), r)
	})
}

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
