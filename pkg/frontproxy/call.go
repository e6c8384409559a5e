package frontproxy

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"

	"github.com/shardplane/shardplane/pkg/authn"
)

// call is a request of an authenticated user on its way to a server.
type call struct {
	user user.Info
	// token is passed on to shards instead of the user, if it is set.
	token string
	// rest is the escaped path below what names the target.
	rest string
	// long is set for watches and upgrades.
	long, upgrade bool
	// arrived is when the request came, from which on it waits for the index.
	arrived time.Time
}

// newCall returns the call that a request makes, or answers and reports false.
func newCall(w http.ResponseWriter, r *http.Request, devTokens map[string]*user.DefaultInfo) (*call, bool) {
	who, ok := genericapirequest.UserFrom(r.Context())
	if !ok {
		unauthorized.ServeHTTP(w, r)
		return nil, false
	}
	upgrade := r.Header.Get("Upgrade")
	if strings.ContainsFunc(upgrade, func(c rune) bool { return c < ' ' || c > '~' }) {
		writeStatus(w, apierrors.NewBadRequest("the Upgrade header does not name a protocol"))
		return nil, false
	}
	if refused := tooLarge(r, who); refused != nil {
		writeStatus(w, refused)
		return nil, false
	}
	return &call{
		user: who, token: passedOn(r.Context(), who, devTokens), long: upgrade != "" || isWatch(r), upgrade: upgrade != "", arrived: arrivalOf(r.Context()),
	}, true
}

// identify says in the header of a request to a shard who it is from. The header says nothing
// about that yet but what the client says.
func (c *call) identify(header http.Header, groups authn.GroupFilter) {
	if c.token != "" {
		header.Set("Authorization", "Bearer "+c.token)
		return
	}
	header.Del("Authorization")
	// Apart, since it compares each header that there is with those that it sets.
	said := http.Request{Header: http.Header{}}
	transport.SetAuthProxyHeaders(&said, c.user.GetName(), c.user.GetUID(), groups.Filter(c.user.GetGroups()), c.user.GetExtra())
	maps.Copy(header, said.Header)
}

// arrivalOf returns when the request of ctx came: what was done for it since is part of
// every wait.
func arrivalOf(ctx context.Context) time.Time {
	if rec := recordFrom(ctx); rec != nil {
		return rec.received
	}
	return time.Now()
}

// identified returns the ID under which the shard audits the request. The shard
// would choose one itself; chosen here, it also stands in the front-proxy's own
// log, beside the path that the client wrote.
func identified(r *http.Request) string {
	id := r.Header.Get(auditinternal.HeaderAuditID)
	if id == "" {
		id = uuid.NewString()
		r.Header.Set(auditinternal.HeaderAuditID, id)
	}
	return id
}
