package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/semaphore"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
)

const (
	// flagCalls is the flag that errors name.
	flagCalls = "--webhook-calls-per-cluster"
	// maxWait is how long a write waits for calls of others to end.
	maxWait = 10 * time.Second
)

// Calls bound how many admission webhooks are called at a time for one logical
// cluster: each call holds the object that is written, and an answer. It is safe
// for concurrent use.
type Calls struct {
	limit int64

	mu sync.Mutex
	of map[logicalcluster.Name]*places
}

// places are those of one logical cluster, while somebody wants some.
type places struct {
	*semaphore.Weighted
	users int
}

// NewCalls returns calls of which limit are made at a time.
func NewCalls(limit int) *Calls {
	return &Calls{limit: int64(limit), of: map[logicalcluster.Name]*places{}}
}

// take waits for n places for the request of a; the caller gives them back with
// release.
func (c *Calls) take(ctx context.Context, cluster logicalcluster.Name, a admission.Attributes, n int) (release func(), err error) {
	if n == 0 {
		return func() {}, nil
	}
	if int64(n) > c.limit {
		return nil, admission.NewForbidden(a, fmt.Errorf("the rules of %d webhooks match the request, and the server calls at most %d at a time for a workspace (%s): narrow the rules, or delete webhooks",
			n, c.limit, flagCalls))
	}
	p := c.enter(cluster)
	wait, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	if err := p.Acquire(wait, int64(n)); err != nil {
		c.leave(cluster, p)
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("all %d calls of webhooks that the server makes at a time for a workspace (%s) are under way: try again", c.limit, flagCalls), 1)
	}
	return func() {
		p.Release(int64(n))
		c.leave(cluster, p)
	}, nil
}

func (c *Calls) enter(cluster logicalcluster.Name) *places {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.of[cluster]
	if p == nil {
		p = &places{Weighted: semaphore.NewWeighted(c.limit)}
		c.of[cluster] = p
	}
	p.users++
	return p
}

func (c *Calls) leave(cluster logicalcluster.Name, p *places) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(c.of, cluster)
	}
}

// ruled are the rules of webhooks, and whether they are called together.
type ruled struct {
	webhooks [][]admissionregistrationv1.RuleWithOperations
	together bool
}

// add adds the rules of a webhook. One that sees a resource in all of its groups
// and versions is counted by the name of the resource.
func (r *ruled) add(all []admissionregistrationv1.RuleWithOperations, policy *admissionregistrationv1.MatchPolicyType) {
	if policy == nil || *policy != admissionregistrationv1.Exact {
		wider := make([]admissionregistrationv1.RuleWithOperations, 0, len(all))
		for _, rule := range all {
			rule.APIGroups, rule.APIVersions = []string{"*"}, []string{"*"}
			wider = append(wider, rule)
		}
		all = wider
	}
	r.webhooks = append(r.webhooks, all)
}

// calls returns how many webhooks may be called at a time for a request, by their
// rules alone.
func (r *ruled) calls(a admission.Attributes) (n int) {
	if rules.IsExemptAdmissionConfigurationResource(a) {
		return 0
	}
	for _, webhook := range r.webhooks {
		for _, rule := range webhook {
			if m := (rules.Matcher{Rule: rule, Attr: a}); m.Matches() {
				n++
				break
			}
		}
		if n == 1 && !r.together {
			break
		}
	}
	return n
}
