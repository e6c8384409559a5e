package client

import (
	"maps"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
)

// locations records which members of a Union have the objects of a logical cluster. Nearly all logical clusters are
// on one shard and have one entry. There are entries per object only while several shards have objects.
type locations struct {
	// in calls visit with the objects of a logical cluster in a member.
	in func(member uint32, cluster logicalcluster.Name, visit func(local))

	mu      sync.RWMutex
	single  map[logicalcluster.Name]soleLocation
	several map[logicalcluster.Name]*sharedCluster
}

// soleLocation is the only member with objects of a logical cluster, and their number.
type soleLocation struct{ member, objects uint32 }

// sharedCluster is a logical cluster of which several members have objects.
type sharedCluster struct {
	// objects are the numbers of objects by member.
	objects map[uint32]uint32
	// copies are the members that have an object, the valid one last.
	copies map[local][]uint32
}

// add records that a member has a new object. It returns the member whose copy was valid before, if any.
func (p *locations) add(cluster logicalcluster.Name, l local, member uint32) (before uint32, hidden bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.several[cluster]
	if s == nil {
		one, known := p.single[cluster]
		if !known {
			one = soleLocation{member: member}
		}
		if one.member == member {
			one.objects++
			p.single[cluster] = one
			return 0, false
		}
		s = &sharedCluster{objects: map[uint32]uint32{one.member: one.objects}, copies: make(map[local][]uint32, one.objects)}
		p.in(one.member, cluster, func(l local) { s.copies[l] = []uint32{one.member} })
		delete(p.single, cluster)
		p.several[cluster] = s
	}
	s.objects[member]++
	others := s.copies[l]
	s.copies[l] = append(others, member)
	if len(others) == 0 {
		return 0, false
	}
	return others[len(others)-1], true
}

// renew replaces the name of a logical cluster by the string of the newest object. Otherwise, the string of an
// old object would be kept in memory. It reports whether the member's copy is valid.
func (p *locations) renew(cluster logicalcluster.Name, l local, member uint32) (counts bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.several[cluster]; s != nil {
		copies := s.copies[l]
		return len(copies) > 0 && copies[len(copies)-1] == member
	}
	one := p.single[cluster]
	p.single[cluster] = one // with the given key
	return true
}

// remove records that a member no longer has an object. It reports whether the member's copy was valid, and
// returns the member whose copy is valid now, if any.
func (p *locations) remove(cluster logicalcluster.Name, l local, member uint32) (counted bool, now uint32, left bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.several[cluster]
	if s == nil {
		one := p.single[cluster]
		if one.objects--; one.objects == 0 {
			delete(p.single, cluster)
		} else {
			p.single[cluster] = one
		}
		return true, 0, false
	}
	copies := s.copies[l]
	counted = len(copies) > 0 && copies[len(copies)-1] == member
	copies = slices.DeleteFunc(copies, func(other uint32) bool { return other == member })
	if left = len(copies) > 0; left {
		s.copies[l], now = copies, copies[len(copies)-1]
	} else {
		delete(s.copies, l)
	}
	if s.objects[member]--; s.objects[member] == 0 {
		delete(s.objects, member)
	}
	if len(s.objects) == 1 {
		for last, objects := range s.objects {
			p.single[cluster] = soleLocation{member: last, objects: objects}
		}
		delete(p.several, cluster)
	}
	return counted, now, left
}

// superseded reports whether another member's copy of an object is valid, with the lock held.
func (p *locations) superseded(cluster logicalcluster.Name, l local, member uint32) bool {
	s := p.several[cluster]
	if s == nil {
		return false
	}
	copies := s.copies[l]
	return len(copies) > 0 && copies[len(copies)-1] != member
}

// members returns the members with objects of a logical cluster, with the lock held.
func (p *locations) members(cluster logicalcluster.Name) []uint32 {
	if one, ok := p.single[cluster]; ok {
		return []uint32{one.member}
	}
	if s := p.several[cluster]; s != nil {
		return slices.Collect(maps.Keys(s.objects))
	}
	return nil
}
