package frontproxy

import (
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
)

// auditor records what the front-proxy answers itself; answers may be nil.
type auditor struct{ answers *serving.OwnAnswers }

// record records a request that the front-proxy has answered itself. What a shard
// has answered is in the shard's audit log, and probes are in none.
func (a auditor) record(r *http.Request, rec *record, received time.Time) {
	if a.answers == nil || rec.answeredByShard || slices.Contains(authn.ProbePaths(), r.URL.Path) {
		return
	}
	answer := serving.OwnAnswer{Request: r, User: rec.who, AuditID: rec.auditID, Received: received, Status: rec.status}
	if answer.AuditID == "" {
		answer.AuditID = identified(r)
	}
	answer.Status.Code = int32(rec.code)
	switch {
	case rec.code == http.StatusUnauthorized:
		answer.Status.Message = "authentication failed: " + presented(r)
	case rec.code == statusClientGone:
		answer.Status.Message = "the client left before the answer"
	case answer.Status.Status == "":
		answer.Status.Status = metav1.StatusSuccess
	}
	rest := r.URL.EscapedPath()
	if strings.HasPrefix(rest, request.Clusters.Prefix) || strings.HasPrefix(rest, request.ServicesPrefix) || strings.HasPrefix(rest, shardsPrefix) {
		if at, err := addressOf(rest); err == nil {
			rest = at.rest
			answer.Cluster, answer.Path = clusterOf(at, rec.cluster)
		}
	}
	inner := *r
	innerURL := *r.URL
	innerURL.Path, innerURL.RawPath = unescapedRest(rest), ""
	inner.URL = &innerURL
	info, err := requestInfos.NewRequestInfo(&inner)
	if err != nil {
		info = &genericapirequest.RequestInfo{Path: innerURL.Path, Verb: strings.ToLower(r.Method)}
	}
	answer.Info = info
	a.answers.Record(answer)
}

// presented says with which credentials somebody failed, but not what they are.
func presented(r *http.Request) string {
	var credentials []string
	if _, token := authn.BearerToken(r.Header); token || r.Header.Get("Authorization") != "" {
		credentials = append(credentials, "a token")
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		credentials = append(credentials, "a certificate")
	}
	if len(credentials) == 0 {
		return "no credentials"
	}
	return strings.Join(credentials, " and ") + " that nobody here has issued, or not any more"
}
