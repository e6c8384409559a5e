package webhook

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// take waits for the calls that the request of a needs; the caller gives them back with
// release. It refuses what more webhooks may see than are called at a time, also where these are
// called one after the other: for each the server evaluates conditions.
func take(ctx context.Context, calls *webhooktransport.Calls, caller webhooktransport.Caller, a admission.Attributes, rules *ruled) (release func(), err error) {
	n := rules.match(a)
	if n == 0 {
		return func() {}, nil
	}
	if n > calls.Limit() {
		return nil, admission.NewForbidden(a, fmt.Errorf("the rules of %d webhooks match the request, and the server calls at most %d for one, and for a workspace at a time (%s): narrow the rules, or delete webhooks",
			n, calls.Limit(), webhooktransport.FlagCalls))
	}
	if !rules.together {
		n = 1
	}
	return calls.Take(ctx, caller, n)
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

// match returns how many webhooks may be called for a request, by their rules alone.
func (r *ruled) match(a admission.Attributes) (n int) {
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
	}
	return n
}
