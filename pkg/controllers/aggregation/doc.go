// Package aggregation keeps the rules of aggregated cluster roles: those of all
// cluster roles of the same logical cluster that their selectors match.
//
//	ClusterRole a, labelled ──┐
//	ClusterRole b, labelled ──┴─► ClusterRole with an aggregationRule: rules of a and b
package aggregation
