package downstream

import "github.com/xds-relay/xds-relay/internal/wire"

// The cost of decoding a request is checked against the limits before it is decoded.

// nodeLimits end the counting of a Node.
var nodeLimits = wire.NodeLimits{Bytes: maxNodeBytes, Values: maxNodeValues}

// fewLocators take too little memory to be refused before it is known which of them are equal.
const fewLocators = 1000

// overCost checks a request that is not decoded yet against the limits.
func (l Limits) overCost(c wire.RequestCost) *excess {
	if e := overTypeURL(c.TypeURL); e != nil {
		return e
	}
	if e := over(limitNodeBytes, c.Node, maxNodeBytes, "a node of %d bytes"); e != nil {
		return e
	}
	if e := over(limitNodeValues, c.NodeValues, maxNodeValues, "a node of %d values or more"); e != nil {
		return e
	}
	if c.Locators <= fewLocators {
		return nil // their parameters are counted when they are decoded
	}
	return over(limitSubscriptions, c.Locators, l.Subscriptions, "%d locators in a request")
}

func overTypeURL(bytes int) *excess {
	return over(limitTypeURLBytes, bytes, maxTypeURLBytes, "a type URL of %d bytes")
}
